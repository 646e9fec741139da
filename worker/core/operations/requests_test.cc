// Requests that concern all ranks: process sets and joins; and which ranks may
// use a set.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class RequestsTest : public ExecutorCoreTest {
 protected:
  void AskSet(ClientId client, uint32_t number, uint64_t members) {
    auto request = session::Make<session::SetRequest>();
    request.number = number;
    request.members[0] = members;
    core_.OnSetRequest(client, request);
  }
  void AskSetAsMember(ClientId client, uint32_t number, uint64_t members) {
    auto request = session::Make<session::SetRequest>();
    request.number = number;
    request.by_members = 1;
    request.members[0] = members;
    core_.OnSetRequest(client, request);
  }
  // The coordinator's answer to the members of `ranks`.
  void AnswerMembers(uint32_t id, const std::vector<uint32_t>& ranks,
                     int code = 0) {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_set_reply()->set_by_members(true);
    m.mutable_set_reply()->set_process_set(id);
    m.mutable_set_reply()->mutable_ranks()->Assign(ranks.begin(), ranks.end());
    m.mutable_set_reply()->set_code(code);
    core_.OnCoordinator(m);
  }
  void AskJoin(ClientId client, uint32_t number, bool settled) {
    auto request = session::Make<session::JoinRequest>();
    request.number = number;
    request.settled = settled ? 1 : 0;
    core_.OnJoinRequest(client, request);
  }
  template <typename T>
  std::vector<std::pair<ClientId, T>> Replies() {
    std::vector<std::pair<ClientId, T>> out;
    for (const ReplyClient& r : Take<ReplyClient>()) {
      out.emplace_back(r.client, std::get<T>(r.reply));
    }
    return out;
  }
  static proto::CoordinatorMessage StandIn(const std::string& name,
                                           uint32_t generation) {
    proto::CoordinatorMessage m;
    proto::StandIn* s = m.mutable_stand_in();
    m.set_epoch(1);
    s->set_id(4);
    s->mutable_identity()->set_name(name);
    s->set_generation(generation);
    s->mutable_signature()->set_dtype(static_cast<uint32_t>(DType::kFloat32));
    s->mutable_signature()->set_op(static_cast<uint32_t>(Op::kMax));
    s->mutable_signature()->set_prescale(1);
    s->mutable_signature()->set_postscale(1);
    s->mutable_signature()->add_shape(8);
    return m;
  }
};

TEST_F(RequestsTest, ASetIsAskedForByAllAndThenThere) {
  StartTwoNodes();
  AskSet(1, 1, 0b1101);
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::SetRequest& request = sent[0].set_request();
  EXPECT_EQ(sent[0].epoch(), 1u);
  EXPECT_EQ(request.rank(), 0u);
  EXPECT_EQ(request.number(), 1u);
  EXPECT_FALSE(request.remove());
  EXPECT_EQ(
      std::vector<uint32_t>(request.ranks().begin(), request.ranks().end()),
      (std::vector<uint32_t>{0, 2, 3}));
  AskSet(1, 2, 0b11);  // goes on without waiting
  AskSet(2, 1, 0b1101);
  Drop();
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 1).code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  MakeSet(1, 1, {0, 2, 3});
  const auto replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].first, 1u);
  EXPECT_EQ(replies[1].first, 2u);
  EXPECT_EQ(replies[1].second.number, 1u);
  EXPECT_EQ(replies[1].second.process_set, 1u);
  EXPECT_EQ(replies[1].second.code, 0u);
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 1).negotiated, 1u);
}

TEST_F(RequestsTest, MembersAreAnsweredByTheRanksOfTheirSet) {
  StartTwoNodes();
  AskSetAsMember(1, 1, 0b0101);
  AskSetAsMember(1, 2, 0b1001);
  AskSetAsMember(1, 3, 0b0101);  // as the first: the coordinator knows it
  AskSetAsMember(2, 1, 0b1010);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_TRUE(sent[0].set_request().by_members());
  EXPECT_EQ(sent[0].set_request().number(), 0u);
  EXPECT_EQ(sent[0].set_request().rank(), 0u);
  EXPECT_EQ(sent[1].set_request().ranks(1), 3u);
  EXPECT_EQ(sent[2].set_request().rank(), 1u);
  AnswerMembers(1, {0, 3});
  auto replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].first, 1u);
  EXPECT_EQ(replies[0].second.number, 2u);
  EXPECT_EQ(replies[0].second.by_members, 1u);
  EXPECT_EQ(replies[0].second.process_set, 1u);
  AnswerMembers(2, {0, 2});
  replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].second.number, 1u);
  EXPECT_EQ(replies[1].second.number, 3u);
  AnswerMembers(0, {1, 3}, 10);
  replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].first, 2u);
  EXPECT_EQ(replies[0].second.code, 10u);
  // For a set that exists, the members get its id, and no second set is made.
  // Requests of all ranks are numbered separately.
  AskSetAsMember(1, 4, 0b0101);
  AnswerMembers(2, {0, 2});
  EXPECT_EQ(Replies<session::SetReply>().at(0).second.process_set, 2u);
  AskSet(1, 1, 0b0011);
  MakeSet(1, 3, {0, 1});
  EXPECT_EQ(Replies<session::SetReply>().at(0).second.process_set, 3u);
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 2).negotiated, 1u);
}

TEST_F(RequestsTest, TooManyRequestsOfAMemberEndTheEpoch) {
  StartTwoNodes();
  for (uint32_t i = 1; i <= kMaxWaitingRequests; ++i) {
    AskSetAsMember(1, i, 0b11);
  }
  EXPECT_TRUE(Take<AbortBoard>().empty());
  AskSetAsMember(1, kMaxWaitingRequests + 1, 0b11);
  EXPECT_EQ(Take<AbortBoard>().size(), 1u);
}

TEST_F(RequestsTest, ARefusedSetIsToldToThoseWhoHaveAskedAlsoLate) {
  StartTwoNodes();
  AskSet(1, 1, 0b11);
  Drop();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_set_reply()->set_number(1);
  m.mutable_set_reply()->set_code(10);
  m.mutable_set_reply()->set_message("rank 3 has left");
  core_.OnCoordinator(m);
  auto replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].first, 1u);
  EXPECT_EQ(replies[0].second.code, 10u);
  EXPECT_STREQ(replies[0].second.text, "rank 3 has left");
  AskSet(2, 1, 0b11);
  Drop();
  core_.OnCoordinator(m);
  replies = Replies<session::SetReply>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].first, 2u);
}

TEST_F(RequestsTest, AReplyThatComesTwiceMakesOneSet) {
  StartTwoNodes();
  MakeSet(1, 1, {0, 2});
  MakeSet(1, 1, {0, 2});
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RequestsTest, ARemovedSetHasNoNewNamesAndItsIdNeverComesAgain) {
  StartTwoNodes();
  MakeSet(1, 1, {0, 2});
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_set_reply()->set_number(2);
  m.mutable_set_reply()->set_remove(true);
  m.mutable_set_reply()->set_process_set(1);
  core_.OnCoordinator(m);
  Drop();
  EXPECT_STREQ(Slot("x", Kind::kAllreduce, 1).text,
               "allreduce 'x': process set 1 has been removed");
  EXPECT_STREQ(Slot("x", Kind::kAllreduce, 2).text,
               "allreduce 'x': process set 2 does not exist; every rank must "
               "create it first");
  MakeSet(3, 1, {0, 2});
  EXPECT_EQ(Take<AbortBoard>().at(0).code, Code::kInternal);
}

class BadSetTest : public RequestsTest,
                   public testing::WithParamInterface<std::vector<uint32_t>> {};

TEST_P(BadSetTest, ASetThatCannotBeEndsTheEpoch) {
  StartTwoNodes();
  MakeSet(1, 1, GetParam());
  EXPECT_EQ(Take<AbortBoard>().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSetTest,
    testing::Values(std::vector<uint32_t>{}, std::vector<uint32_t>{1, 0},
                    std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{4},
                    std::vector<uint32_t>{4000000000u, 1}));

TEST_F(RequestsTest, WhoIsNoMemberGetsNoSlot) {
  StartTwoNodes();
  MakeSet(1, 1, {1, 3});
  Drop();
  const session::SlotReply reply = Slot("x", Kind::kAllreduce, 1);
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_STREQ(reply.text,
               "allreduce 'x': rank 0 is not in process set 1 (ranks 1,3)");
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 1, 2).code, 0u);
}

TEST_F(RequestsTest, ASetWithinTheNodeNeedsNobodyElse) {
  StartTwoNodes();
  MakeSet(1, 1, {0, 1});
  MakeSet(2, 2, {0});
  Drop();
  const session::SlotReply reply = Slot("x", Kind::kAllreduce, 1);
  EXPECT_EQ(reply.negotiated, 0u);
  EXPECT_EQ(reply.code, 0u);
  core_.OnReadySlot(Ready(reply.slot, 1, Kind::kAllreduce, 8, 8));  // made up
  EXPECT_TRUE(core_.TakeActions().empty());
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 2).negotiated, 0u);
  // The same name in another set is another slot.
  EXPECT_EQ(Slot("x", Kind::kAllreduce, 2).slot, reply.slot + 1);
}

TEST_F(RequestsTest, PresenceIsOfTheMembers) {
  StartTwoNodes();
  MakeSet(1, 1, {1, 3});
  Drop();
  auto request = session::Make<session::SlotRequest>();
  request.process_set = 1;
  session::SetText(request.name, "x");
  core_.OnSlotRequest(2, request);
  const auto allotted = Take<AllotSlot>();
  ASSERT_EQ(allotted.size(), 1u);
  EXPECT_EQ(allotted[0].set->mask(), 2u);
  EXPECT_EQ(allotted[0].name, "x");
  ReadySlot ready = Ready(0, 1, Kind::kAllreduce, 8, 8);
  ready.signatures.resize(1);
  ready.signatures[0].process_set = 1;
  core_.OnReadySlot(ready);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const auto& op = sent[0].presence().operations(0);
  EXPECT_EQ(op.identity().process_set(), 1u);
  ASSERT_EQ(op.signatures_size(), 1);
  ASSERT_EQ(op.signatures(0).ranks_size(), 1);
  EXPECT_EQ(op.signatures(0).ranks(0), 1u);
}

TEST_F(RequestsTest, ARootOutsideTheSetCannotBe) {
  StartTwoNodes();
  MakeSet(1, 1, {1, 3});
  Slot("b", Kind::kBroadcast, 1, 2);
  ReadySlot ready = Ready(0, 1, Kind::kBroadcast, 8, 8);  // root 2
  ready.signatures.resize(1);
  ready.signatures[0].process_set = 1;
  core_.OnReadySlot(ready);
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_NE(aborted[0].text.find("root, rank 2, is not in the process set"),
            std::string::npos)
      << aborted[0].text;
}

TEST_F(RequestsTest, RequestsOutOfOrderEndTheEpochAndNameTheRank) {
  StartTwoNodes();
  AskSet(2, 2, 1);
  EXPECT_EQ(Take<AbortBoard>().at(0).text,
            "rank 1 has sent its request for a process set number 2 out of "
            "order, or too many of them at once");
}

TEST_F(RequestsTest, TooManyRequestsEndTheEpoch) {
  StartTwoNodes();
  for (uint32_t i = 1; i <= kMaxWaitingRequests; ++i) AskSet(1, i, 1);
  EXPECT_TRUE(Take<AbortBoard>().empty());
  AskSet(1, kMaxWaitingRequests + 1, 1);
  EXPECT_EQ(Take<AbortBoard>().size(), 1u);
}

TEST_F(RequestsTest, AfterTheEndRequestsGetItsReason) {
  StartTwoNodes();
  core_.OnClientGone(2, "its process ended");
  Drop();
  AskSet(1, 1, 1);
  EXPECT_EQ(Replies<session::SetReply>().at(0).second.code,
            static_cast<uint32_t>(Code::kAborted));
  AskJoin(1, 1, false);
  EXPECT_STREQ(Replies<session::JoinReply>().at(0).second.text,
               "rank 1 (pid 101, host hosta, node n0) died: its process ended");
}

TEST_F(RequestsTest, AJoinBeginsSettlesAndIsAnswered) {
  StartTwoNodes();
  AskJoin(1, 1, false);
  AskJoin(1, 1, true);
  AskJoin(2, 1, false);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].join_state().rank(), 0u);
  EXPECT_EQ(sent[0].join_state().number(), 1u);
  EXPECT_FALSE(sent[0].join_state().settled());
  EXPECT_TRUE(sent[1].join_state().settled());
  EXPECT_EQ(sent[2].join_state().rank(), 1u);
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_join_reply()->set_number(1);
  m.mutable_join_reply()->set_last_rank(3);
  core_.OnCoordinator(m);
  const auto replies = Replies<session::JoinReply>();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].first, 1u);
  EXPECT_EQ(replies[1].second.last_rank, 3);
  AskJoin(1, 2, false);
  EXPECT_EQ(TakeSent().at(0).join_state().number(), 2u);
  AskJoin(1, 2, true);
  EXPECT_TRUE(TakeSent().at(0).join_state().settled());
}

class BadJoinTest : public RequestsTest,
                    public testing::WithParamInterface<int> {};

TEST_P(BadJoinTest, JoinsOutOfOrderEndTheEpoch) {
  StartTwoNodes();
  if (GetParam() == 0) AskJoin(1, 2, false);  // skips one
  if (GetParam() == 1) AskJoin(1, 1, true);   // settles what has not begun
  if (GetParam() == 4) AskJoin(1, 0, true);   // there is no such join
  if (GetParam() == 2 || GetParam() == 3) AskJoin(1, 1, false);
  if (GetParam() == 2) AskJoin(1, 2, false);  // the first is not over
  if (GetParam() == 3) {
    AskJoin(1, 1, true);
    AskJoin(1, 1, true);
  }
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_NE(aborted[0].text.find("rank 0 has sent its join number "),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadJoinTest, testing::Range(0, 5));

TEST_F(RequestsTest, AJoinMaySettleAfterItsAnswer) {
  StartTwoNodes();
  AskJoin(1, 1, false);
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_join_reply()->set_number(1);
  m.mutable_join_reply()->set_code(10);
  core_.OnCoordinator(m);
  Drop();
  AskJoin(1, 1, true);
  EXPECT_TRUE(TakeSent().at(0).join_state().settled());
}

// The ranks have joined; without an error other ranks would wait forever.
TEST_F(RequestsTest, StandInWithoutAFreeNameEndsTheEpoch) {
  StartTwoNodes();
  for (uint32_t i = 0; i < ExecutorCoreOptions().slots; ++i) {
    ASSERT_EQ(Slot("x" + std::to_string(i)).code, 0u);
  }
  core_.OnCoordinator(StandIn("x7", 1));
  EXPECT_EQ(Take<WantSlot>().size(), 1u);
  proto::CoordinatorMessage more = StandIn("one more", 1);
  more.mutable_stand_in()->set_id(5);
  core_.OnCoordinator(more);
  EXPECT_TRUE(Take<AbortBoard>().empty());  // one may become free
  core_.OnTime(kSlotWaitMs);
  std::vector<AbortBoard> aborted;
  proto::ExecutorFailed failed;
  for (Action& a : core_.TakeActions()) {
    if (auto* b = std::get_if<AbortBoard>(&a)) aborted.push_back(*b);
    if (auto* s = std::get_if<SendToCoordinator>(&a)) {
      failed = s->message.failed();
    }
  }
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].code, Code::kResourceExhausted);
  EXPECT_NE(aborted[0].text.find("allreduce 'one more': all 16384 "),
            std::string::npos)
      << aborted[0].text;
  EXPECT_NE(aborted[0].text.find("; the ranks of node n0 (host host0) have "
                                 "joined and cannot stand in for it"),
            std::string::npos)
      << aborted[0].text;
  EXPECT_EQ(failed.message(), aborted[0].text);
}

TEST_F(RequestsTest, WhatHasFailedWithoutAFreeNameNeedsNone) {
  StartTwoNodes();
  for (uint32_t i = 0; i < ExecutorCoreOptions().slots; ++i) {
    ASSERT_EQ(Slot("x" + std::to_string(i)).code, 0u);
  }
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_operation_failed()->set_id(9);
  m.mutable_operation_failed()->mutable_identity()->set_name("one more");
  m.mutable_operation_failed()->set_generation(1);
  m.mutable_operation_failed()->set_code(10);
  core_.OnCoordinator(m);
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RequestsTest, StandInIsWantedOnceAndOnlyIfTheNodeIsBehind) {
  StartTwoNodes();
  core_.OnCoordinator(StandIn("elsewhere", 1));
  auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<AllotSlot>(actions[0]).name, "elsewhere");
  const WantSlot& want = std::get<WantSlot>(actions[1]);
  EXPECT_EQ(want.slot, 0u);
  EXPECT_EQ(want.generation, 1u);
  EXPECT_EQ(want.signature.shape[0], 8);
  EXPECT_EQ(want.signature.op, Op::kMax);
  ReadySlot ready = Ready(0, 1, Kind::kAllreduce, 8, 8);
  for (Signature& s : ready.signatures) s.aside = 1;
  core_.OnReadySlot(ready);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations(0).id(), 4u);
  EXPECT_TRUE(sent[0].presence().operations(0).signatures(0).aside());
  core_.OnCoordinator(StandIn("elsewhere", 1));
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RequestsTest, StandInThatCannotBeEndsTheEpoch) {
  StartTwoNodes();
  proto::CoordinatorMessage m = StandIn("x", 1);
  m.mutable_stand_in()->mutable_signature()->set_dtype(99);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<AbortBoard>().at(0).code, Code::kInternal);
}

TEST_F(RequestsTest, WhoStandsAsideIsReportedApart) {
  StartTwoNodes();
  Slot("a", Kind::kAllgather);
  ReadySlot ready = Ready(0, 1, Kind::kAllgather, 5, 0);
  ready.signatures[1].aside = 1;
  core_.OnReadySlot(ready);
  const auto sent = TakeSent();
  const auto& op = sent.at(0).presence().operations(0);
  ASSERT_EQ(op.signatures_size(), 2);
  EXPECT_FALSE(op.signatures(0).aside());
  EXPECT_TRUE(op.signatures(1).aside());
  EXPECT_EQ(op.first_dims(1), 0);
}

TEST_F(RequestsTest, SplitsAreReported) {
  StartTwoNodes();
  ASSERT_EQ(Slot("x", Kind::kAlltoall).code, 0u);
  ReadySlot ready = Ready(0, 1, Kind::kAlltoall, 6, 0);
  ready.splits = {1, 2, 3, 0, 0, 0, 0, 0};
  core_.OnReadySlot(ready);
  const auto sent = TakeSent();
  const auto& op = sent.at(0).presence().operations(0);
  EXPECT_EQ(op.first_dims(0), 6);
  EXPECT_EQ(std::vector<int64_t>(op.splits().begin(), op.splits().end()),
            ready.splits);
  ready.generation = 2;
  ready.splits.pop_back();
  core_.OnReadySlot(ready);
  EXPECT_EQ(Take<AbortBoard>().size(), 1u);
}

TEST_F(RequestsTest, SplitsMustMakeSense) {
  SetTable sets({0, 0, 1, 1}, {0, 1});
  SlotEntry entry;
  entry.set = sets.all();
  entry.kind = Kind::kAlltoall;
  ReadySlot ready = Ready(0, 1, Kind::kAlltoall, 6, 0);
  ready.splits = {1, 2, 3, 0, 0, 0, 0, 0};
  EXPECT_TRUE(CheckReadySlot(ready, entry, "node n0").ok());
  for (const std::vector<int64_t>& row : {std::vector<int64_t>{1, 2, 2, 0},
                                          {7, 0, 0, -1},
                                          {1, 2, 3, 1},
                                          {INT64_MAX, INT64_MAX, 8, 0},
                                          {INT64_MIN, 0, 0, 0}}) {
    std::copy(row.begin(), row.end(), ready.splits.begin());
    const absl::Status s = CheckReadySlot(ready, entry, "node n0");
    EXPECT_NE(s.message().find("rank 0 (node n0)"), std::string::npos) << s;
  }
}

TEST_F(RequestsTest, SplitNamesHaveALimit) {
  StartTwoNodes();
  for (uint32_t i = 0; i < kMaxSplitNames; ++i) {
    ASSERT_EQ(Slot("x" + std::to_string(i), Kind::kAlltoall).code, 0u);
  }
  auto request = session::Make<session::SlotRequest>();
  request.kind = static_cast<uint32_t>(Kind::kAlltoall);
  session::SetText(request.name, "one more");
  core_.OnSlotRequest(1, request);
  EXPECT_TRUE(Take<ReplyClient>().empty());  // a place may become free
  core_.OnTime(kSlotWaitMs);
  const auto reply = Reply<session::SlotReply>();
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kResourceExhausted));
  EXPECT_NE(std::string(reply.text).find("512 names of alltoall"),
            std::string::npos);
  EXPECT_EQ(Slot("x7", Kind::kAlltoall).code, 0u);
  EXPECT_EQ(Slot("other", Kind::kAllgather).code, 0u);
}

TEST_F(RequestsTest, ANoticeGoesToTheSmallestLocalRankIfNobodyWaits) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  Drop();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_notice()->set_text("rank 3 is late");
  core_.OnCoordinator(m);
  const auto replies = Replies<session::Notice>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].first, 2u);
  EXPECT_STREQ(replies[0].second.text, "rank 3 is late");
}

}  // namespace
}  // namespace maypole::worker
