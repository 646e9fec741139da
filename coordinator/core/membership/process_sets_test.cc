// Requests to make and remove process sets.
#include "coordinator/core/membership/process_sets.h"

#include <string>

#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using Ranks = std::vector<uint32_t>;

// Node 0 with ranks 2 and 0, node 1 with ranks 1 and 3.
class ProcessSetsTest : public ::testing::Test {
 protected:
  absl::Status Ask(uint32_t rank, uint32_t number, const Ranks& ranks,
                   uint32_t remove = 0) {
    proto::SetRequest m;
    m.set_rank(rank);
    m.set_number(number);
    m.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    m.set_remove(remove != 0);
    m.set_process_set(remove);
    return Send(Time(number), m);
  }
  absl::Status AskAsMember(uint32_t rank, const Ranks& ranks) {
    proto::SetRequest m;
    m.set_rank(rank);
    m.set_by_members(true);
    m.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    return Send(Time(rank), m);
  }
  absl::Status Send(Time now, const proto::SetRequest& m) {
    absl::Status status = sets_.OnRequest(
        now, m.rank() % 2, m, [&](uint32_t s) { return s == busy_; });
    Collect();
    return status;
  }
  void Leave(uint32_t rank) {
    departures_.OnLeft(rank);
    sets_.OnRankLeft(rank);
    Collect();
  }
  // Adds the answers that were sent.
  void Collect() {
    for (const auto& [node, message] : std::exchange(output_.messages, {})) {
      if (!message.ToMessage().has_set_reply()) continue;
      const proto::SetReply reply = message.ToMessage().set_reply();
      if (reply.decision() == 0) {
        replies_.emplace_back(node, reply);
      } else if (node == 0) {
        replies_.emplace_back(std::nullopt, reply);
      } else {
        EXPECT_EQ(reply.SerializeAsString(),
                  replies_.back().second.SerializeAsString());
      }
    }
  }
  // All ranks make the same request; returns the answer.
  proto::SetReply All(const Ranks& ranks, uint32_t remove = 0) {
    ++number_;
    replies_.clear();
    for (const uint32_t rank : {3, 0, 1, 2}) {
      EXPECT_TRUE(replies_.empty());
      EXPECT_TRUE(Ask(rank, number_, ranks, remove).ok());
    }
    if (replies_.size() != 1) return proto::SetReply();
    EXPECT_FALSE(replies_[0].first);  // to all
    EXPECT_EQ(replies_[0].second.number(), number_);
    return replies_[0].second;
  }
  static std::string Text(const proto::SetReply& reply, absl::StatusCode code) {
    EXPECT_EQ(reply.code(), static_cast<int>(code));
    return reply.message();
  }

  JobOutput output_;
  EpochNodes nodes_{1,
                    "job",
                    {{.session = 0, .node = "n0", .ranks = {2, 0}},
                     {.session = 1, .node = "n1", .ranks = {1, 3}}},
                    &output_};
  Departures departures_{&nodes_, 4};
  ProcessSets sets_{&nodes_, &departures_, 4};
  // The receiver (nullopt: all nodes) and the answer.
  std::vector<std::pair<std::optional<size_t>, proto::SetReply>> replies_;
  uint32_t number_ = 0;
  uint32_t busy_ = ~0u;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_F(ProcessSetsTest, SetZeroHasAllRanks) {
  const RankSet* all = sets_.Find(0);
  ASSERT_NE(all, nullptr);
  EXPECT_THAT(all->ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(all->by_node, ElementsAre(Ranks{2, 0}, Ranks{1, 3}));
  EXPECT_THAT(all->nodes, ElementsAre(0, 1));
  EXPECT_EQ(sets_.Find(1), nullptr);
}

TEST_F(ProcessSetsTest, IsMadeWhenAllHaveAskedAndCountsFromOne) {
  const proto::SetReply reply = All({0, 2, 3});
  EXPECT_EQ(reply.code(), 0) << reply.message();
  EXPECT_EQ(reply.process_set(), 1u);
  EXPECT_THAT(reply.ranks(), ElementsAre(0, 2, 3));
  const RankSet* set = sets_.Find(1);
  ASSERT_NE(set, nullptr);
  // In the order of local ranks.
  EXPECT_THAT(set->by_node, ElementsAre(Ranks{2, 0}, Ranks{3}));
  EXPECT_THAT(set->nodes, ElementsAre(0, 1));
  EXPECT_EQ(All({1, 3}).process_set(), 2u);
  EXPECT_THAT(sets_.Find(2)->nodes, ElementsAre(1));
  EXPECT_EQ(sets_.Find(1), set);
}

TEST_F(ProcessSetsTest, RanksMayBeAheadOfOthers) {
  ASSERT_TRUE(Ask(0, 1, {0, 1}).ok());
  ASSERT_TRUE(Ask(0, 2, {2, 3}).ok());
  ASSERT_TRUE(Ask(2, 1, {0, 1}).ok());
  ASSERT_TRUE(sets_.WaitOf(0));
  EXPECT_EQ(sets_.WaitOf(0)->text, "process set request 1");
  EXPECT_FALSE(sets_.WaitOf(1));
  const auto waiting = sets_.Waiting();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].text, "process set request 1");
  EXPECT_EQ(waiting[0].since, Time(1));
  EXPECT_THAT(waiting[0].asked, ElementsAre(0, 2));
  EXPECT_THAT(waiting[0].missing, ElementsAre(1, 3));
  EXPECT_THAT(waiting[1].missing, ElementsAre(1, 2, 3));
  ASSERT_TRUE(Ask(1, 1, {0, 1}).ok());
  ASSERT_TRUE(Ask(3, 1, {0, 1}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(sets_.WaitOf(0)->text, "process set request 2");
  EXPECT_FALSE(sets_.WaitOf(1));
}

TEST_F(ProcessSetsTest, DifferentRequestsNameRanksAndValues) {
  ASSERT_TRUE(Ask(2, 1, {0, 2}).ok());
  ASSERT_TRUE(Ask(1, 1, {0, 1}).ok());
  ASSERT_TRUE(Ask(3, 1, {}, 7).ok());
  ASSERT_TRUE(Ask(0, 1, {0, 1}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(Text(replies_[0].second, kPrecondition),
            "process set request 1: ranks 0,1 ask for [0, 1], rank 2 asks for "
            "[0, 2], rank 3 asks to remove process set 7; every rank must ask "
            "for the same sets in the same order");
  EXPECT_EQ(sets_.Find(1), nullptr);
  number_ = 1;  // used up
  EXPECT_EQ(All({0, 1}).process_set(), 1u);
}

TEST_F(ProcessSetsTest, WhatIsNoNewSetIsRefused) {
  ASSERT_EQ(All({0, 1}).process_set(), 1u);
  EXPECT_EQ(Text(All({0, 1}), kInvalid),
            "process set request 2: the ranks [0, 1] are process set 1 "
            "already; use that one");
  EXPECT_EQ(Text(All({0, 1, 2, 3}), kInvalid),
            "process set request 3: the ranks [0, 1, 2, 3] are process set 0 "
            "already; use that one");
  EXPECT_EQ(Text(All({}), kInvalid),
            "process set request 4: a process set needs at least one rank, "
            "this one has none");
  EXPECT_EQ(Text(All({1, 4}), kInvalid),
            "process set request 5: rank 4 is not in the job of 4 ranks (0 to "
            "3)");
  EXPECT_EQ(Text(All({1, 0}), kInvalid),
            "process set request 6: the ranks [1, 0] are not each there once, "
            "in ascending order");
  EXPECT_EQ(Text(All({1, 1}), kInvalid),
            "process set request 7: the ranks [1, 1] are not each there once, "
            "in ascending order");
}

TEST_F(ProcessSetsTest, RemovedSetsAreKnownNoMoreAndTheirIdsNotUsedAgain) {
  ASSERT_EQ(All({0, 1}).process_set(), 1u);
  busy_ = 1;
  EXPECT_EQ(Text(All({}, 1), kPrecondition),
            "process set request 2: process set 1 (ranks [0, 1]) has an "
            "operation that is not complete; wait for it before you remove the "
            "set");
  EXPECT_NE(sets_.Find(1), nullptr);
  busy_ = ~0u;
  const proto::SetReply removed = All({}, 1);
  EXPECT_EQ(removed.code(), 0) << removed.message();
  EXPECT_TRUE(removed.remove());
  EXPECT_EQ(removed.process_set(), 1u);
  EXPECT_EQ(sets_.Find(1), nullptr);
  EXPECT_NE(sets_.FindEver(1), nullptr);
  EXPECT_EQ(Text(All({}, 1), kInvalid),
            "process set request 4: there is no process set 1 to remove; it "
            "was removed before");
  EXPECT_EQ(Text(All({}, 9), kInvalid),
            "process set request 5: there is no process set 9 to remove");
  EXPECT_EQ(All({0, 1}).process_set(), 2u);
}

TEST_F(ProcessSetsTest, SetZeroCannotBeRemoved) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    proto::SetRequest m;
    m.set_rank(rank);
    m.set_number(1);
    m.set_remove(true);
    ASSERT_TRUE(Send(Time(), m).ok());
  }
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(Text(replies_[0].second, kInvalid),
            "process set request 1: process set 0 has all ranks of the job and "
            "cannot be removed");
}

TEST_F(ProcessSetsTest, TooManySetsAreRefused) {
  for (uint32_t i = 1; i <= kMaxProcessSets; ++i) {
    ASSERT_EQ(All({i % 2, 3}).process_set(), i);
    if (i == kMaxProcessSets) break;
    ASSERT_EQ(All({}, i).code(), 0);
  }
  EXPECT_THAT(Text(All({2, 3}), absl::StatusCode::kResourceExhausted),
              ::testing::HasSubstr("has made 1024 process sets"));
}

TEST_F(ProcessSetsTest, ARankThatLeavesAbortsThem) {
  ASSERT_TRUE(Ask(0, 1, {0, 1}).ok());
  ASSERT_TRUE(Ask(0, 2, {0, 2}).ok());
  Leave(2);
  ASSERT_EQ(replies_.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(replies_[i].first);
    EXPECT_EQ(replies_[i].second.number(), i + 1);
    EXPECT_EQ(Text(replies_[i].second, absl::StatusCode::kAborted),
              "process set request " + std::to_string(i + 1) +
                  ": rank 2 (node n0) has shut down; every rank of the job "
                  "must ask for a process set");
  }
  EXPECT_EQ(sets_.waiting(), 0u);
  Leave(0);
  ASSERT_EQ(replies_.size(), 2u);
  ASSERT_TRUE(Ask(1, 1, {0, 1}).ok());  // late: answered alone
  ASSERT_EQ(replies_.size(), 3u);
  EXPECT_EQ(replies_[2].first, 1u);
  EXPECT_THAT(Text(replies_[2].second, absl::StatusCode::kAborted),
              ::testing::HasSubstr("rank 2 (node n0)"));
}

TEST_F(ProcessSetsTest, BadRequestsAreBadMessages) {
  EXPECT_FALSE(Ask(0, 2, {0, 1}).ok());  // not the next
  EXPECT_FALSE(Ask(0, 0, {0, 1}).ok());
  EXPECT_FALSE(Ask(1, 1, Ranks(kMaxRanks + 1, 0)).ok());
  EXPECT_FALSE(Ask(4, 1, {0, 1}).ok());  // of node 0, which has no rank 4
  ASSERT_TRUE(Ask(0, 1, {0, 1}).ok());
  EXPECT_FALSE(Ask(0, 1, {0, 1}).ok());
  for (uint32_t i = 2; i <= kMaxSetRequests; ++i) {
    ASSERT_TRUE(Ask(0, i, {0, 1}).ok());
  }
  EXPECT_FALSE(Ask(0, kMaxSetRequests + 1, {0, 1}).ok());
}

TEST(MembersTextTest, IsCut) {
  EXPECT_EQ(MembersText({}), "[]");
  EXPECT_EQ(MembersText({3}), "[3]");
  Ranks many(20);
  for (uint32_t i = 0; i < 20; ++i) many[i] = i;
  EXPECT_EQ(MembersText(many),
            "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, and 4 "
            "more]");
}

TEST_F(ProcessSetsTest, MembersAloneAskInAnyOrder) {
  ASSERT_TRUE(AskAsMember(3, {1, 3}).ok());
  ASSERT_TRUE(AskAsMember(0, {0, 2, 3}).ok());
  EXPECT_TRUE(replies_.empty());
  EXPECT_EQ(sets_.waiting(), 2u);
  ASSERT_TRUE(sets_.WaitOf(3));
  EXPECT_EQ(sets_.WaitOf(3)->text, "process set of ranks [1, 3]");
  EXPECT_EQ(sets_.WaitOf(3)->since, Time(3));
  EXPECT_THAT(sets_.WaitOf(3)->missing, ElementsAre(1));
  ASSERT_TRUE(AskAsMember(3, {0, 2, 3}).ok());
  ASSERT_TRUE(AskAsMember(3, {0, 2, 3}).ok());  // twice, before the answer
  ASSERT_TRUE(AskAsMember(2, {0, 2, 3}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_FALSE(replies_[0].first);  // to all
  const proto::SetReply& reply = replies_[0].second;
  EXPECT_TRUE(reply.by_members());
  EXPECT_EQ(reply.number(), 0u);
  EXPECT_EQ(reply.code(), 0);
  EXPECT_EQ(reply.process_set(), 1u);
  EXPECT_THAT(reply.ranks(), ElementsAre(0, 2, 3));
  EXPECT_THAT(sets_.Find(1)->nodes, ElementsAre(0, 1));
  // The requests of all ranks are counted separately.
  EXPECT_EQ(All({0, 1}).process_set(), 2u);
  replies_.clear();
  ASSERT_TRUE(AskAsMember(1, {1, 3}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].second.process_set(), 3u);
  EXPECT_EQ(sets_.waiting(), 0u);
}

TEST_F(ProcessSetsTest, MembersGetTheSetThatExists) {
  EXPECT_EQ(All({1, 2}).process_set(), 1u);
  replies_.clear();
  ASSERT_TRUE(AskAsMember(2, {1, 2}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].first, 0u);  // to the node that asks
  EXPECT_EQ(replies_[0].second.process_set(), 1u);
  replies_.clear();
  ASSERT_TRUE(AskAsMember(2, {0, 1, 2, 3}).ok());
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_EQ(replies_[0].second.process_set(), 0u);
  EXPECT_EQ(replies_[0].second.code(), 0);
}

TEST_F(ProcessSetsTest, OnlyAMemberThatLeftFailsARequestOfMembers) {
  ASSERT_TRUE(AskAsMember(1, {1, 2}).ok());
  ASSERT_TRUE(AskAsMember(1, {1, 3}).ok());
  Leave(2);
  ASSERT_EQ(replies_.size(), 1u);
  EXPECT_FALSE(replies_[0].first);
  EXPECT_THAT(replies_[0].second.ranks(), ElementsAre(1, 2));
  EXPECT_EQ(Text(replies_[0].second, absl::StatusCode::kAborted),
            "process set of ranks [1, 2]: rank 2 (node n0) has shut down");
  ASSERT_TRUE(AskAsMember(3, {1, 3}).ok());
  ASSERT_EQ(replies_.size(), 2u);
  EXPECT_EQ(replies_[1].second.process_set(), 1u);
  ASSERT_TRUE(AskAsMember(0, {0, 2}).ok());
  ASSERT_EQ(replies_.size(), 3u);
  EXPECT_EQ(replies_[2].first, 0u);
  EXPECT_EQ(Text(replies_[2].second, absl::StatusCode::kAborted),
            "process set of ranks [0, 2]: rank 2 (node n0) has shut down");
}

TEST_F(ProcessSetsTest, ImpossibleRequestsOfMembersAreBadMessages) {
  EXPECT_EQ(AskAsMember(0, {1, 2}).code(), kInvalid);
  EXPECT_EQ(AskAsMember(0, {}).code(), kInvalid);
  EXPECT_EQ(AskAsMember(0, {0, 9}).code(), kInvalid);
  EXPECT_EQ(AskAsMember(0, {2, 0}).code(), kInvalid);
  EXPECT_EQ(AskAsMember(0, {0, 0}).code(), kInvalid);
  EXPECT_TRUE(replies_.empty());
  EXPECT_EQ(sets_.waiting(), 0u);
}

}  // namespace
}  // namespace maypole::coordinator
