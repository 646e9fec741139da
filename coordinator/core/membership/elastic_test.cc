// Elastic jobs: which ranks are in an epoch, when it starts, and what the other
// ranks are told.
#include "coordinator/core/membership/elastic.h"

#include <random>

#include "coordinator/core/testing/elastic_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ResultOf;

// Nodes n0, n1, n2; a job of 2 to 4 ranks.
class ElasticTest : public ::testing::Test {
 protected:
  void Wait(ElasticNode& node, const std::vector<ElasticRank>& ranks) {
    node.waiting = ranks;
    Say(node);
  }
  void Say(ElasticNode& node, uint32_t min_size = 2, uint32_t max_size = 4) {
    bed_.From(*node.executor, node.Ready(min_size, max_size));
    bed_.Pass(Time{});
  }
  // The last epoch's clients by rank, as announced to all nodes.
  std::vector<uint64_t> Ranks() {
    std::vector<uint64_t> out;
    for (ElasticNode* n : {&a_, &b_, &c_}) {
      const proto::EpochStart* start = n->LastStart();
      if (start == nullptr || start->epoch() != epoch()) continue;
      out.resize(start->size());
      const proto::NodeInfo& own = start->nodes(start->node_index());
      for (int i = 0; i < own.ranks_size(); ++i) {
        out[own.ranks(i)] = start->clients(i);
      }
    }
    return out;
  }
  uint64_t epoch() {
    uint64_t last = 0;
    for (ElasticNode* n : {&a_, &b_, &c_}) {
      if (n->LastStart()) last = std::max(last, n->LastStart()->epoch());
    }
    return last;
  }
  void Leave(ElasticNode& node, uint32_t rank, bool returns,
             bool finished = false) {
    proto::ExecutorMessage m = Gone(epoch(), rank, true);
    m.mutable_rank_gone()->set_returns(returns);
    m.mutable_rank_gone()->set_finished(finished);
    bed_.From(*node.executor, m);
    bed_.Pass(Time{});
  }
  void Finish(ElasticNode& node, uint32_t rank) {
    Leave(node, rank, false, true);
  }
  // The refusals of a node's processes after the end of the training.
  static auto RefusedAsOver(std::vector<uint64_t> clients) {
    return ElementsAre(
        AllOf(ResultOf([](const auto& end) { return end.code(); },
                       static_cast<int>(absl::StatusCode::kOutOfRange)),
              ResultOf([](const auto& end) { return end.message(); },
                       HasSubstr("the training is over: rank 0 (node n0")),
              ResultOf(
                  [](const auto& end) {
                    return std::vector<uint64_t>(end.clients().begin(),
                                                 end.clients().end());
                  },
                  clients)));
  }
  // Clients 11, 12 on n0 are ranks 0, 1; 21 on n1 is rank 2.
  void StartThree() {
    Wait(a_, {{11}, {12}});
    Wait(b_, {{21}});
    bed_.Pass(seconds(1));
    ASSERT_THAT(Ranks(), ElementsAre(11, 12, 21));
  }

  TestBed bed_;
  ElasticNode a_{&bed_.Connect("j", "n0")};
  ElasticNode b_{&bed_.Connect("j", "n1")};
  ElasticNode c_{&bed_.Connect("j", "n2")};
};

TEST_F(ElasticTest, StartsWhenNothingHasChangedForASecond) {
  Wait(a_, {{11}});
  bed_.Pass(seconds(5));
  EXPECT_EQ(epoch(), 0u);  // two are needed
  Wait(b_, {{21}});
  bed_.Pass(milliseconds(900));
  EXPECT_EQ(epoch(), 0u);
  Wait(a_, {{11}, {12}});
  bed_.Pass(milliseconds(900));
  EXPECT_EQ(epoch(), 0u);
  bed_.Pass(milliseconds(100));
  EXPECT_EQ(epoch(), 1u);
  EXPECT_THAT(Ranks(), ElementsAre(11, 12, 21));
  EXPECT_THAT(bed_.log(), Not(Contains(HasSubstr("state_lost"))));
  const proto::EpochStart& start = *b_.LastStart();
  EXPECT_EQ(start.nodes(0).node(), "n0");
  EXPECT_EQ(start.node_index(), 1u);
  EXPECT_THAT(start.clients(), ElementsAre(21));
}

TEST_F(ElasticTest, StartsAtOnceWithAsManyAsTheJobMayHaveTheOthersWait) {
  Wait(a_, {{11}, {12}, {13}});
  Wait(b_, {{21}, {22}});
  EXPECT_THAT(Ranks(), ElementsAre(11, 12, 13, 21));
  // 22 waits for the next epoch; since then a start was sent to n1.
  b_.waiting = {{22}};
  Say(b_);
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(0, 0)));  // no room
  Leave(a_, 1, false);
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 1)));
  EXPECT_EQ(b_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 1)));
}

TEST_F(ElasticTest, SurvivorsKeepTheirOrderAndNodesTheirRanksTogether) {
  StartThree();
  bed_.From(*a_.executor, Gone(1, 0, false, "it died"));
  ASSERT_EQ(b_.executor->ends.size(), 1u);
  EXPECT_THAT(b_.executor->ends[0].message(), HasSubstr("rank 0 (node n0"));
  // A node of new processes comes first, and a new one on n0 comes before rank
  // 1 is back.
  Wait(c_, {{31}});
  Wait(a_, {{13}});
  Wait(b_, {{22, 1, 2}});
  Wait(a_, {{13}, {14, 1, 1}});
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(14, 13, 22, 31));
}

TEST_F(ElasticTest, SurvivorsOfADeathGoOnAtOnceAndNewOnesEnterLater) {
  StartThree();
  bed_.From(*a_.executor, Gone(1, 0, false, "it died"));
  Leave(a_, 1, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 1}});
  EXPECT_EQ(epoch(), 1u);  // rank 2 is expected
  Wait(b_, {{22, 1, 2}});
  EXPECT_EQ(epoch(), 2u);  // no time has passed
  EXPECT_THAT(Ranks(), ElementsAre(13, 22));
  Wait(c_, {{31}});
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  EXPECT_EQ(b_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  Leave(a_, 0, true);
  Leave(b_, 1, true);
  Wait(a_, {{14, 2, 0}});
  Wait(b_, {{23, 2, 1}});
  EXPECT_EQ(epoch(), 3u);
  EXPECT_THAT(Ranks(), ElementsAre(14, 23, 31));
}

TEST_F(ElasticTest, WhoGotTheStateLaterComesFirst) {
  StartThree();
  // Epoch 2 has only rank 2; ranks 0 and 1 return after its start.
  Leave(b_, 2, true);
  Leave(a_, 0, false);
  Leave(a_, 1, false);
  Wait(b_, {{22, 1, 2}});
  Wait(c_, {{31}});
  ASSERT_THAT(Ranks(), ElementsAre(22, 31));
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  Leave(b_, 0, true);
  Leave(c_, 1, true);
  Wait(b_, {{24, 2, 0}});
  Wait(c_, {{32, 2, 1}});
  ASSERT_EQ(epoch(), 3u);
  ASSERT_THAT(Ranks(), ElementsAre(24, 32, 13, 14));
  // Rank 1 gets the state in epoch 3; the others do not, and report what they
  // were before: they are waited for nevertheless.
  bed_.From(*b_.executor, Gone(3, 0, false, "it died"));
  Leave(c_, 1, true);
  Leave(a_, 2, true);
  Leave(a_, 3, true);
  Wait(a_, {{15, 1, 0}, {16, 1, 1}});
  EXPECT_EQ(epoch(), 3u);
  Wait(c_, {{33, 3, 1}});
  EXPECT_EQ(epoch(), 4u);
  EXPECT_THAT(Ranks(), ElementsAre(33, 15, 16));
}

TEST_F(ElasticTest, WhoAbandonsAnEpochOfAnotherCoordinatorIsWaitedForByItsPid) {
  StartThree();
  for (uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  Wait(b_, {{22, 1, 2}});
  ASSERT_EQ(epoch(), 2u);
  TestBed after;
  std::vector<ElasticNode> nodes;
  for (const ElasticNode* before : {&a_, &b_}) {
    proto::ExecutorHello hello;
    hello.set_protocol_version(kProtocolVersion);
    hello.set_newest_version(kProtocolVersion);
    hello.set_job("j");
    hello.set_node(before == &a_ ? "n0" : "n1");
    hello.set_token("secret");
    hello.set_session(before->executor->session);
    hello.set_incarnation("the one before");
    nodes.push_back({&after.Hello(hello)});
    proto::ExecutorMessage m;
    *m.mutable_node_state()->mutable_start() = *before->LastStart();
    m.mutable_node_state()->set_connected(true);
    after.From(*nodes.back().executor, m);
  }
  after.From(*nodes[0].executor, Gone(2, 0, false, "it died"));
  const auto returns = [&](ElasticNode& node, uint32_t rank, ElasticRank as) {
    proto::ExecutorMessage m = Gone(2, rank, true);
    m.mutable_rank_gone()->set_returns(true);
    after.From(*node.executor, m);
    node.waiting = {as};
    after.From(*node.executor, node.Ready(2, 4));
    after.Pass(Time{});
  };
  // Without the state of epoch 2, both report what they were in epoch 1.
  returns(nodes[0], 1, {15, 1, 1, 1012});
  EXPECT_EQ(nodes[0].LastStart(), nullptr) << "rank 2 is expected";
  returns(nodes[1], 2, {23, 1, 2, 1021});
  ASSERT_NE(nodes[0].LastStart(), nullptr) << "no time has passed";
  EXPECT_EQ(nodes[0].LastStart()->epoch(), 3u);
  EXPECT_EQ(nodes[0].LastStart()->nodes(0).node(), "n0");
}

TEST_F(ElasticTest, TooFewSurvivorsWaitOnlyForEnoughNewOnes) {
  StartThree();
  bed_.From(*a_.executor, Gone(1, 0, false, "it died"));
  Leave(a_, 1, false);
  Leave(b_, 2, true);
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(10));
  EXPECT_EQ(epoch(), 1u);  // two are needed
  Wait(c_, {{31}});
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(22, 31));
  EXPECT_THAT(bed_.log(), Not(Contains(HasSubstr("state_lost"))));
}

TEST_F(ElasticTest, WithoutAnyoneOfTheLastEpochTheNewOnesSettle) {
  StartThree();
  Leave(a_, 0, false);
  Leave(a_, 1, false);
  Leave(b_, 2, false);
  Wait(c_, {{31}, {32}});
  bed_.Pass(milliseconds(900));
  EXPECT_EQ(epoch(), 1u);
  bed_.Pass(milliseconds(100));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(31, 32));
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("state_lost")));
}

TEST_F(ElasticTest, WhoLivesIsWaitedForWhoHasGoneIsNot) {
  StartThree();
  Leave(a_, 0, true);
  Leave(a_, 1, false);
  Leave(b_, 2, true);
  Wait(a_, {{15, 1, 0}, {16}});
  bed_.Pass(seconds(10));
  EXPECT_EQ(epoch(), 1u);  // 21 means to come back
  // Its process has ended.
  bed_.From(*b_.executor, Gone(1, 2, false, "its process has ended"));
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(15, 16));
}

TEST_F(ElasticTest, WhoIsStillInAnEpochThatHasEndedIsWaitedFor) {
  StartThree();
  bed_.From(*a_.executor, Gone(1, 0, false, "it died"));
  Wait(b_, {{22, 1, 2}, {23}});
  bed_.Pass(seconds(10));
  EXPECT_EQ(epoch(), 1u);  // rank 1 computes
  proto::ExecutorMessage left = Gone(1, 1, false);
  left.mutable_rank_gone()->set_returns(true);
  bed_.From(*a_.executor, left);
  bed_.Pass(seconds(10));
  EXPECT_EQ(epoch(), 1u);
  Wait(a_, {{17, 1, 1}});
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(17, 22, 23));
}

TEST_F(ElasticTest, ALostExecutorsRanksAreNotWaitedForButKnownAgain) {
  StartThree();
  bed_.Break(*a_.executor);
  bed_.Pass(seconds(3));
  ASSERT_EQ(b_.executor->ends.size(), 1u);
  Wait(b_, {{22, 1, 2}});
  a_ = ElasticNode{&bed_.Connect("j", "n0")};
  Wait(a_, {{1, 1, 1, 1012}});
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(1, 22));  // as before: rank 1 before rank 2
}

TEST_F(ElasticTest, NewRanksAreWantedUntilTheyAreInOrGone) {
  StartThree();
  EXPECT_TRUE(a_.executor->inbox.back().has_epoch_start());
  Wait(c_, {{31}, {32}});
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));  // room for 1
  EXPECT_EQ(b_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  const size_t messages = a_.executor->inbox.size();
  Wait(c_, {{31}});
  EXPECT_EQ(a_.executor->inbox.size(), messages);  // as wanted as before
  Wait(c_, {});
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(0, 0)));
  Wait(c_, {{33}});
  for (uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(a_, {{18, 1, 0}, {19, 1, 1}});
  Wait(b_, {{24, 1, 2}});
  EXPECT_THAT(Ranks(), ElementsAre(18, 19, 24, 33));
}

TEST_F(ElasticTest, TooFewAreToldHowManyAreThereAndWhoIsNot) {
  StartThree();
  bed_.From(*a_.executor, Gone(1, 0, false, "it died"));
  Leave(a_, 1, true);
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(119));
  EXPECT_EQ(b_.Refused().size(), 0u);
  bed_.Pass(seconds(1));
  ASSERT_EQ(b_.Refused().size(), 1u);
  EXPECT_EQ(b_.Refused()[0].code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(b_.Refused()[0].message(),
            "the job did not start within 120 s: 1 of at least 2 ranks are "
            "there: node n1 (host host-n1) with 1 rank; missing from the last "
            "epoch: rank 0 (node n0, host host-n0, pid 1011), rank 1 (node n0, "
            "host host-n0, pid 1012)");
  EXPECT_THAT(b_.Refused()[0].clients(), ElementsAre(22));
  EXPECT_EQ(bed_.Count(ErrorKind::kStartTimeout), 2);  // left behind; too few
  // Rank 1 is not waited for again.
  Wait(b_, {{23, 1, 2}, {24}});
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(23, 24));
}

TEST_F(ElasticTest, WhoDoesNotComeBackInTimeIsLeftBehindAndNewLater) {
  StartThree();
  bed_.From(*b_.executor, Gone(1, 2, false, "it died"));
  Leave(a_, 0, true);
  Leave(a_, 1, true);
  Wait(b_, {{22}});
  Wait(a_, {{13, 1, 1}});
  bed_.Pass(seconds(119));
  EXPECT_EQ(epoch(), 1u);
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(13, 22));
  EXPECT_THAT(bed_.log(), Contains(AllOf(HasSubstr("ranks_left_behind"),
                                         HasSubstr("rank 0 (node n0"))));
  Wait(a_, {{14, 1, 0}});
  EXPECT_EQ(b_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
}

// Ranks leave one after the other; the last one of them hangs.
TEST_F(ElasticTest, WhoCameBackBeforeTheEpochWasOverStartsWithoutTheMissing) {
  StartThree();
  Leave(a_, 0, true);
  Leave(a_, 1, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  bed_.Pass(seconds(1));
  Leave(b_, 2, true);
  bed_.Pass(seconds(119));
  EXPECT_EQ(epoch(), 1u);
  EXPECT_THAT(a_.Refused(), IsEmpty());
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(13, 14));
  EXPECT_THAT(bed_.log(), Contains(AllOf(HasSubstr("ranks_left_behind"),
                                         HasSubstr("rank 2 (node n1"))));
}

TEST_F(ElasticTest, ThatANewOneHasWaitedLongIsNoReasonToLeaveOthersBehind) {
  StartThree();
  Wait(c_, {{31}});
  bed_.Pass(seconds(119));
  for (uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  bed_.Pass(seconds(1));
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_EQ(c_.Refused()[0].message(),
            "the job did not start within 120 s: 3 ranks are there: node n0 "
            "(host host-n0) with 2 ranks, node n2 (host host-n2) with 1 rank; "
            "missing from the last epoch: rank 2 (node n1, host host-n1, pid "
            "1021)");
  bed_.Pass(seconds(5));
  EXPECT_EQ(epoch(), 1u);
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(13, 14, 22));
}

TEST_F(ElasticTest, ANodesRanksWaitAsLongAsTheySay) {
  StartThree();
  c_.start_timeout_ms = 5000;
  Wait(c_, {{31}});
  Wait(b_, {{29}});  // sets none: 120 s
  bed_.Pass(seconds(4));
  EXPECT_EQ(c_.Refused().size(), 0u);
  bed_.Pass(seconds(1));
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_THAT(c_.Refused()[0].message(),
              HasSubstr("did not start within 5 s: epoch 1 is running"));
  bed_.Pass(seconds(100));
  EXPECT_EQ(b_.Refused().size(), 0u);
}

TEST_F(ElasticTest, WhoIsMissingIsLeftBehindAfterTheTimeThatOthersSay) {
  a_.start_timeout_ms = 300000;
  b_.start_timeout_ms = 20000;
  StartThree();
  Leave(a_, 0, true);
  Leave(a_, 1, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 1}});
  bed_.Pass(seconds(15));
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(19));
  EXPECT_EQ(epoch(), 1u);  // rank 0 has 300 s as node n0 sees it, n1 waits 20
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(13, 22));
  EXPECT_THAT(
      bed_.log(),
      Contains(AllOf(HasSubstr("rank 0 (node n0"),
                     HasSubstr("did not call init() again within 20 s"))));
}

TEST_F(ElasticTest, WhoWaitsTooLongForARunningEpochIsToldAloneAndWhy) {
  StartThree();
  Wait(c_, {{31}});
  bed_.Pass(seconds(100));
  Wait(c_, {{31}, {32}});
  bed_.Pass(seconds(20));
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_THAT(c_.Refused()[0].clients(), ElementsAre(31));
  EXPECT_EQ(c_.Refused()[0].message(),
            "the job did not start within 120 s: epoch 1 is running with ranks "
            "0,1,2, which have not left it for another one");
  Wait(c_, {{32}});
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  EXPECT_THAT(a_.executor->ends, IsEmpty());
}

TEST_F(ElasticTest, WhatCrossedWithAStartCountsNotUntilSaidAgain) {
  Wait(a_, {{11}, {12}});
  // n0's report of client 13 crosses with the start.
  ElasticNode before = a_;
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 1u);
  before.waiting = {{11}, {12}, {13}};
  proto::ExecutorMessage crossed = before.Ready(2, 4);
  crossed.mutable_ranks_ready()->set_round(0);
  bed_.From(*a_.executor, crossed);
  bed_.Pass(seconds(2));
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(0, 0)));
  Wait(a_, {{13}});
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  crossed.mutable_ranks_ready()->set_round(2);  // of the future
  bed_.From(*a_.executor, crossed);
  EXPECT_TRUE(a_.executor->refused.has_value());
}

TEST_F(ElasticTest, AStartThatFailsOnANodeKeepsEverybodysPlace) {
  StartThree();
  for (uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 2u);
  // Rank 0 dies while n0 starts: n0's 14 keeps waiting, as rank 1 of epoch 1;
  // n1 has started, but without rank 0 its rank does not get the state.
  bed_.From(*a_.executor, Gone(2, 0, false, "it died"));
  Wait(a_, {{14, 1, 1}});
  Wait(b_, {{23, 1, 2}});
  bed_.Pass(seconds(1));
  EXPECT_EQ(epoch(), 3u);
  EXPECT_THAT(Ranks(), ElementsAre(14, 23));
}

TEST_F(ElasticTest, OtherTermsAreRefusedNamingBoth) {
  Wait(a_, {{11}});
  b_.waiting = {{21}};
  Say(b_, 2, 8);
  ASSERT_EQ(b_.Refused().size(), 1u);
  EXPECT_EQ(b_.Refused()[0].message(),
            "the job cannot take the ranks of node n1 (host host-n1): they say "
            "that it has 2 to 8 ranks, those of node n0 (host host-n0) have "
            "said 2 to 4 ranks; start all ranks with the same smallest and "
            "greatest number");
  EXPECT_THAT(a_.Refused(), IsEmpty());
  Say(b_);
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(11, 21));
}

TEST_F(ElasticTest, ElasticAndFixedRanksDoNotMix) {
  Wait(a_, {{11}});
  bed_.Ready(*b_.executor, 4, {2, 3});
  ASSERT_EQ(b_.Refused().size(), 1u);
  EXPECT_EQ(b_.Refused()[0].message(),
            "the job cannot take the ranks of node n1 (host host-n1): they are "
            "not elastic, the others are; start all ranks of a job alike");
  Wait(a_, {});
  bed_.Ready(*b_.executor, 4, {2, 3});
  Wait(a_, {{11}});
  ASSERT_EQ(a_.Refused().size(), 1u);
  EXPECT_THAT(a_.Refused()[0].message(), HasSubstr("they are elastic, the"));
}

// The job belonged to another coordinator before, or all its executors were
// lost.
TEST_F(ElasticTest, WhoWasInAnEpochIsFirstAndInALaterOneAlsoInAJobThatIsNew) {
  Wait(c_, {{31}});
  Wait(b_, {{21, 7, 2}});
  Wait(a_, {{11}, {12, 7, 1}});
  EXPECT_EQ(epoch(), 8u);
  EXPECT_THAT(Ranks(), ElementsAre(12, 11, 21, 31));
}

TEST_F(ElasticTest, AnotherProcessIsNotTakenForOneOfTheEpoch) {
  StartThree();
  Wait(a_, {{13, 1, 0, 77}});  // it has been rank 0 in another life of the job
  EXPECT_EQ(a_.Wanted(), (std::pair<uint32_t, uint32_t>(1, 0)));
  for (uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(b_, {{22, 1, 2}});
  Wait(a_, {{13, 1, 0, 77}, {14, 1, 1}, {15, 1, 0}});
  EXPECT_THAT(Ranks(), ElementsAre(15, 14, 13, 22));
}

// A dead agent is restarted as another node of its host.
TEST_F(ElasticTest, WhoComesThroughAnotherAgentOfItsHostIsKnown) {
  StartThree();
  for (const uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  Wait(b_, {{22, 1, 2}});
  ASSERT_EQ(epoch(), 2u);
  // Rank 2 does not get the state in epoch 2.
  for (const uint32_t rank : {0, 1}) Leave(a_, rank, true);
  Leave(b_, 2, true);
  Wait(b_, {{23, 1, 2}});
  proto::ExecutorHello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_newest_version(kProtocolVersion);
  hello.set_job("j");
  hello.set_node("n0.1");
  hello.set_host("host-n0");
  hello.set_token("secret");
  ElasticNode again{&bed_.Hello(hello)};
  Wait(again, {{15, 2, 0, 1011}, {16, 2, 1, 1012}});
  const proto::EpochStart* const start = again.LastStart();
  ASSERT_NE(start, nullptr) << "no time has passed";
  EXPECT_THAT(start->nodes(start->node_index()).ranks(), ElementsAre(0, 1));
  // They may continue when another one has finished.
  Finish(b_, 2);
  for (const uint32_t rank : {0, 1}) Leave(again, rank, true);
  hello.set_node("n0.2");
  ElasticNode third{&bed_.Hello(hello)};
  Wait(third, {{17, 3, 0, 1011}, {18, 3, 1, 1012}});
  EXPECT_THAT(third.Refused(), IsEmpty());
  ASSERT_NE(third.LastStart(), nullptr);
  EXPECT_EQ(third.LastStart()->epoch(), 4u);
}

// Their executor has died, and they come through the next one.
TEST_F(ElasticTest, NewOnesWhoseStartHasFailedSettleForThoseWithTheState) {
  Wait(a_, {{11}, {12}});
  Wait(c_, {{31, 7, 0}, {32, 7, 1}});
  ASSERT_EQ(epoch(), 8u);
  ASSERT_THAT(Ranks(), ElementsAre(31, 32, 11, 12));
  bed_.Break(*c_.executor);
  ElasticNode again{&bed_.Connect("j", "n2")};
  Wait(a_, {{11}, {12}});
  EXPECT_EQ(epoch(), 8u) << "no time has passed";
  Wait(again, {{33, 7, 0, 1031}, {34, 7, 1, 1032}});
  EXPECT_EQ(epoch(), 9u);
  const proto::EpochStart* const start = again.LastStart();
  ASSERT_NE(start, nullptr);
  EXPECT_THAT(start->nodes(start->node_index()).ranks(), ElementsAre(0, 1));
  // Without those with the state, the new ones begin, later.
  bed_.Break(*again.executor);
  bed_.Connect("j", "n2");
  Wait(a_, {{11}, {12}});
  bed_.Pass(milliseconds(999));
  EXPECT_EQ(epoch(), 9u);
  bed_.Pass(milliseconds(1));
  EXPECT_EQ(epoch(), 10u);
}

TEST_F(ElasticTest, MalformedRanksEndTheSession) {
  a_.waiting = {{11}, {11}};
  Say(a_);
  EXPECT_TRUE(a_.executor->refused.has_value());
  b_.waiting = {{21}};
  Say(b_, 3, 2);
  EXPECT_TRUE(b_.executor->refused.has_value());
  EXPECT_EQ(bed_.Count(ErrorKind::kBadMessage), 2);
}

TEST_F(ElasticTest, TheOperatorsStopIsToldToAllWhoWait) {
  Wait(a_, {{11}});
  // TestBed's streams are closed after it, so look at what was sent before.
  Actions actions;
  bed_.core().Stop([&actions](Actions* a) { actions = std::move(*a); });
  bool told = false;
  for (const Action& action : actions) {
    const Send* send = std::get_if<Send>(&action);
    told = told || (send != nullptr &&
                    send->message.ToMessage().epoch_end().message() ==
                        "the coordinator was stopped by its operator");
  }
  EXPECT_TRUE(told);
}

// --- The end of the training -------------------------------------------------

TEST_F(ElasticTest, NobodyBeginsAgainWhatRanksHaveFinished) {
  StartThree();
  Wait(c_, {{31}});  // replaces one that has died before
  Finish(a_, 0);
  Finish(a_, 1);
  EXPECT_THAT(c_.Refused(), IsEmpty());  // rank 2 may still need it
  Finish(b_, 2);
  EXPECT_THAT(c_.Refused(), RefusedAsOver({31}));
  // However late it comes.
  bed_.Pass(seconds(3600));
  Wait(b_, {{22}, {23}});
  EXPECT_THAT(b_.Refused(), RefusedAsOver({22, 23}));
  EXPECT_EQ(epoch(), 1u);
}

TEST_F(ElasticTest, ARankThatLeavesHasNotFinished) {
  StartThree();
  for (uint32_t rank = 0; rank < 2; ++rank) Leave(a_, rank, false);
  Leave(b_, 2, false);
  Wait(c_, {{31}, {32}});
  bed_.Pass(seconds(1));
  EXPECT_THAT(Ranks(), ElementsAre(31, 32));
}

// The epoch may end before all ranks have heard of the last step.
TEST_F(ElasticTest, RanksOfTheLastEpochMayStillFinish) {
  StartThree();
  Finish(a_, 0);
  bed_.From(*b_.executor, Gone(1, 2, false, "it died"));
  Wait(a_, {{12, 1, 1}});
  Wait(c_, {{31}});  // two are needed
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 2u);
  EXPECT_THAT(Ranks(), ElementsAre(12, 31));
  // The survivors of this epoch may also continue.
  bed_.From(*a_.executor, Gone(2, 0, false, "it died"));
  Wait(c_, {{31, 2, 1}, {32}});
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 3u);
  EXPECT_THAT(Ranks(), ElementsAre(31, 32));
  Finish(c_, 0);
  Finish(c_, 1);
  Wait(a_, {{13}, {14}});
  EXPECT_THAT(a_.Refused(), RefusedAsOver({13, 14}));
}

// A coordinator that has replaced another one learns it from the nodes, which
// report it again, even of an epoch before the last one.
TEST_F(ElasticTest, WhatRanksOfAnEarlierEpochHaveFinishedIsOver) {
  StartThree();
  Leave(a_, 0, true);
  Leave(a_, 1, true);
  Leave(b_, 2, true);
  Wait(a_, {{13, 1, 0}, {14, 1, 1}});
  Wait(b_, {{22, 1, 2}});
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 2u);
  proto::ExecutorMessage again = Gone(1, 1, true);
  again.mutable_rank_gone()->set_finished(true);
  bed_.From(*a_.executor, again);
  for (const uint32_t rank : {0, 1}) {
    bed_.From(*a_.executor, Gone(2, rank, false, "it died"));
  }
  bed_.From(*b_.executor, Gone(2, 2, false, "it died"));
  Wait(c_, {{31}, {32}});
  bed_.Pass(seconds(5));
  EXPECT_EQ(epoch(), 2u);
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_THAT(c_.Refused()[0].message(),
              HasSubstr("the training is over: rank 1 of epoch 1 has finished "
                        "it, but rank 0 (node n0"));
}

TEST_F(ElasticTest, WhoWasInAStartThatFailedDoesNotBeginAgain) {
  StartThree();
  Finish(a_, 0);
  bed_.From(*b_.executor, Gone(1, 2, false, "it died"));
  Wait(c_, {{31}, {32}});
  Wait(a_, {{12, 1, 1}});
  bed_.Pass(seconds(1));
  ASSERT_EQ(epoch(), 2u);
  // The only one with the state dies before the epoch has begun; the others
  // wait again, by the same connections.
  bed_.From(*a_.executor, Gone(2, 0, false, "it died"));
  Wait(c_, {{31}, {32}});
  bed_.Pass(seconds(5));
  EXPECT_EQ(epoch(), 2u);
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_EQ(c_.Refused()[0].code(),
            static_cast<int>(absl::StatusCode::kAborted));
}

TEST_F(ElasticTest, ALossAtTheEndIsAnErrorOfThoseThatComeLater) {
  StartThree();
  Finish(a_, 0);
  bed_.From(*a_.executor, Gone(1, 1, false, "it died"));
  Finish(b_, 2);
  Wait(c_, {{31}});
  ASSERT_EQ(c_.Refused().size(), 1u);
  EXPECT_EQ(c_.Refused()[0].code(),
            static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_THAT(c_.Refused()[0].message(),
              AllOf(HasSubstr("rank 0 (node n0"),
                    HasSubstr("but rank 1 (node n0"), HasSubstr("was lost")));
}

// Any order of ends, with and without new processes: after the first rank has
// finished, an epoch begins only with a rank that was in the last epoch and has
// not finished.
TEST_F(ElasticTest, SeedsOfEnds) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TestBed bed;
    ElasticNode a{&bed.Connect("j", "n0")};
    ElasticNode b{&bed.Connect("j", "n1")};
    const auto say = [&](ElasticNode& node) {
      bed.From(*node.executor, node.Ready(1, 8));
      bed.Pass(Time{});
    };
    a.waiting = {{11}, {12}, {13}, {14}};
    say(a);
    bed.Pass(seconds(1));
    ASSERT_NE(a.LastStart(), nullptr);
    a.waiting.clear();
    bool finished = false;
    bool lost = false;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      proto::ExecutorMessage gone = Gone(1, rank, true);
      switch (random() % 4) {
        case 0:  // leaves, as SIGTERM has asked it to
          break;
        case 1:
          gone.mutable_rank_gone()->set_clean(false);
          lost = true;
          break;
        case 2:
          gone.mutable_rank_gone()->set_returns(true);
          a.waiting.push_back({11 + rank + 100, 1, rank});
          break;
        default:
          gone.mutable_rank_gone()->set_finished(true);
          finished = true;
      }
      bed.From(*a.executor, gone);
      bed.Pass(Time{});
    }
    const size_t back = a.waiting.size();
    const bool survivors_first = random() % 2 == 0;
    if (survivors_first) say(a);
    b.waiting = {{21}};
    say(b);
    if (!survivors_first) say(a);
    bed.Pass(seconds(2));
    const auto started = [](const ElasticNode& n) {
      return n.LastStart() != nullptr && n.LastStart()->epoch() == 2;
    };
    EXPECT_EQ(started(a), back > 0);
    EXPECT_EQ(started(a) || started(b), back > 0 || !finished);
    ASSERT_EQ(b.Refused().size(), finished && back == 0 ? 1u : 0u);
    if (b.Refused().empty()) continue;
    EXPECT_EQ(b.Refused()[0].code(),
              static_cast<int>(lost ? absl::StatusCode::kAborted
                                    : absl::StatusCode::kOutOfRange));
  }
}

// A node that was cut off since epoch 1 has told the coordinator of that; the
// executor of the other one, which was in epoch 4, has died.
TEST(ElasticRestoreTest, ThoseOfALaterEpochComeFirst) {
  Elastic elastic(Time(0), std::chrono::minutes(1));
  const auto node = [](SessionId session, const std::string& name) {
    NodeMember member;
    member.session = session;
    member.node = member.host = name;
    return member;
  };
  proto::EpochStart start;
  start.set_epoch(1);
  start.set_size(2);
  start.set_min_size(1);
  start.set_max_size(4);
  NodeMember a = node(1, "a");
  a.ranks = {0};
  a.clients = {11};
  a.pids = {1011};
  NodeMember b = node(0, "b");
  b.ranks = {1};
  b.clients = {21};
  b.pids = {1021};
  elastic.Restore(start, {a, b});
  const auto waits = [&](SessionId session, const std::string& name,
                         const proto::ElasticMember& member) {
    proto::RanksReady ready;
    ready.set_elastic(true);
    ready.set_min_size(1);
    ready.set_max_size(4);
    *ready.add_members() = member;
    EXPECT_TRUE(elastic.SetWaiting(Time(1), node(session, name), ready).ok());
  };
  proto::ElasticMember member;
  member.set_client(12);
  member.set_pid(1011);
  member.set_epoch(1);
  waits(1, "a", member);
  member.set_client(5);
  member.set_pid(1021);
  member.set_epoch(4);
  member.set_rank(1);
  waits(2, "b", member);
  EXPECT_EQ(elastic.LastEpochSaid(), 4u);
  const std::vector<NodeMember> members = elastic.Begin(5);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].node, "b") << "it has the latest state";
  // From now on, a later number belongs to an earlier life of the job.
  member.set_client(13);
  member.set_epoch(9);
  waits(2, "b", member);
  member.set_client(14);
  member.set_pid(1011);
  member.set_epoch(5);
  waits(1, "a", member);
  EXPECT_EQ(elastic.Begin(10)[0].node, "a");
}

// Seed 20815 of the simulation: a node's executor dies with the coordinator,
// and some of its processes come before the last epoch is known.
TEST(ElasticRestoreTest, WhoWaitsAlreadyKeepsItsPlace) {
  Elastic elastic(Time(0), std::chrono::minutes(1));
  NodeMember member{.session = 7, .node = "a", .host = "a"};
  proto::RanksReady ready;
  ready.set_elastic(true);
  ready.set_min_size(1);
  ready.set_max_size(4);
  const auto waits = [&](uint32_t rank) {
    proto::ElasticMember* const said = ready.add_members();
    said->set_client(20 + rank);
    said->set_pid(1000 + rank);
    said->set_epoch(1);
    said->set_rank(rank);
    EXPECT_TRUE(elastic.SetWaiting(Time(1), member, ready).ok());
  };
  waits(2);
  waits(1);
  proto::EpochStart start;
  start.set_epoch(1);
  start.set_size(3);
  start.set_min_size(1);
  start.set_max_size(4);
  elastic.Restore(start, {{.session = 0,
                           .node = "a",
                           .host = "a",
                           .ranks = {0, 1, 2},
                           .pids = {1000, 1001, 1002},
                           .clients = {10, 11, 12}}});
  waits(0);
  const std::vector<NodeMember> members = elastic.Begin(2);
  ASSERT_EQ(members.size(), 1u);
  EXPECT_THAT(members[0].pids, ElementsAre(1000, 1001, 1002));
}

}  // namespace
}  // namespace maypole::coordinator
