// An epoch's operations of process sets, and the kinds with splits and counts.
#include <string>

#include "common/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ranks = std::vector<uint32_t>;

// Node n0 with ranks 0 and 1, n1 with 3 and 2, n2 with 4; epoch 1 runs.
class SetsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 5, {0, 1});
    bed_.Ready(b_, 5, {3, 2});
    bed_.Ready(c_, 5, {4});
  }
  void All(const std::function<proto::ExecutorMessage(uint32_t)>& make) {
    for (const uint32_t rank : {0, 1}) bed_.From(a_, make(rank));
    for (const uint32_t rank : {2, 3}) bed_.From(b_, make(rank));
    bed_.From(c_, make(4));
  }
  uint32_t Set(const Ranks& ranks) {
    ++number_;
    All([&](uint32_t rank) { return MakeSet(rank, number_, ranks); });
    EXPECT_EQ(a_.set_replies.back().code(), 0);
    return a_.set_replies.back().process_set();
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
  Executor& c_ = bed_.Connect("j", "n2");
  uint32_t number_ = 0;
};

TEST_F(SetsTest, AllNodesAreToldOfASet) {
  EXPECT_EQ(Set({1, 2}), 1u);
  for (const Executor* e : {&a_, &b_, &c_}) {
    ASSERT_EQ(e->set_replies.size(), 1u);
    EXPECT_EQ(e->Last().epoch(), 1u);
    EXPECT_EQ(e->set_replies[0].number(), 1u);
    EXPECT_THAT(e->set_replies[0].ranks(), ElementsAre(1, 2));
  }
}

TEST_F(SetsTest, ARequestOfAnothersRankIsABadMessage) {
  bed_.From(a_, MakeSet(2, 1, {0, 1}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(SetsTest, OnlyNodesOfTheSetReportItAndAreTold) {
  const uint32_t set = Set({1, 2});
  bed_.From(a_, Present(1, {In(set, Allreduce("x", {1}, {3}))}));
  EXPECT_TRUE(a_.runs.empty());
  bed_.From(b_, Present(1, {In(set, Allreduce("x", {2}, {3}))}));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->runs.size(), 1u);
    EXPECT_EQ(e->runs[0].run(), 1u);
    EXPECT_EQ(e->runs[0].operations(0).identity().process_set(), set);
    EXPECT_EQ(e->runs[0].operations(0).identity().name(), "x");
  }
  EXPECT_TRUE(c_.runs.empty());
  EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
}

TEST_F(SetsTest, EachNodeCountsItsOwnRuns) {
  const uint32_t ab = Set({1, 2});
  const uint32_t bc = Set({3, 4});
  bed_.From(b_, Present(1, {In(ab, Allreduce("x", {2}, {3})),
                            In(bc, Allreduce("x", {3}, {3}))}));
  bed_.From(c_, Present(1, {In(bc, Allreduce("x", {4}, {3}))}));
  bed_.From(a_, Present(1, {In(ab, Allreduce("x", {1}, {3}))}));
  ASSERT_EQ(a_.runs.size(), 1u);
  ASSERT_EQ(b_.runs.size(), 2u);
  ASSERT_EQ(c_.runs.size(), 1u);
  EXPECT_EQ(b_.runs[0].operations(0).identity().process_set(), bc);
  EXPECT_EQ(b_.runs[0].run(), 1u);
  EXPECT_EQ(c_.runs[0].run(), 1u);
  EXPECT_EQ(b_.runs[1].operations(0).identity().process_set(), ab);
  EXPECT_EQ(b_.runs[1].run(), 2u);
  EXPECT_EQ(a_.runs[0].run(), 1u);
}

TEST_F(SetsTest, SetsAreNotFusedWithOneAnother) {
  const uint32_t one = Set({1, 2});
  const uint32_t two = Set({0, 3});
  bed_.From(a_, Present(1, {In(one, Allreduce("x", {1}, {3})),
                            In(two, Allreduce("x", {0}, {3})),
                            In(one, Allreduce("y", {1}, {3}))}));
  bed_.From(b_, Present(1, {In(one, Allreduce("x", {2}, {3})),
                            In(two, Allreduce("x", {3}, {3})),
                            In(one, Allreduce("y", {2}, {3}))}));
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(a_.runs[0].operations_size(), 2);
  EXPECT_EQ(a_.runs[1].operations_size(), 1);
}

TEST_F(SetsTest, PresenceThatDoesNotFitTheSetIsABadMessage) {
  const std::vector<proto::PresentOperation> bad = {
      In(2, Allreduce("x", {1}, {3})),     // no such set
      In(1, Allreduce("x", {0, 1}, {3})),  // rank 0 is not a member
      In(1, Allreduce("x", {0}, {3})),
      In(1, Allreduce("x", {}, {3})),
  };
  for (const auto& op : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1");
    bed.Ready(a, 3, {0, 1});
    bed.Ready(b, 3, {2});
    bed.From(a, MakeSet(0, 1, {1, 2}));
    bed.From(a, MakeSet(1, 1, {1, 2}));
    bed.From(b, MakeSet(2, 1, {1, 2}));
    bed.From(a, Present(1, {op}));
    EXPECT_TRUE(a.refused) << op.ShortDebugString();
  }
}

TEST_F(SetsTest, ANodeOutsideTheSetCannotReportIt) {
  const uint32_t set = Set({1, 2});
  bed_.From(c_, Present(1, {In(set, Allreduce("x", {}, {3}))}));
  EXPECT_TRUE(c_.refused);
}

TEST_F(SetsTest, AMismatchIsToldToNodesOfTheSet) {
  const uint32_t set = Set({1, 2});
  bed_.From(a_, Present(1, {In(set, Allreduce("x", {1}, {3}))}));
  bed_.From(b_, Present(1, {In(set, Allreduce("x", {2}, {4}))}));
  ASSERT_EQ(a_.failures.size(), 1u);
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_TRUE(c_.failures.empty());
  EXPECT_EQ(
      a_.failures[0].message(),
      "allreduce 'x' of process set 1: mismatched shapes: rank 1 submitted "
      "[3], rank 2 "
      "submitted [4]; every rank must submit the same shape");
}

TEST_F(SetsTest, TheRootMustBeInTheSet) {
  const uint32_t set = Set({1, 2});
  bed_.From(a_, Present(1, {In(set, Broadcast("x", {1}, {3}, 0))}));
  bed_.From(b_, Present(1, {In(set, Broadcast("x", {2}, {3}, 0))}));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].message(),
            "broadcast 'x' of process set 1: root rank 0 is not in process set "
            "1 (ranks [1, "
            "2]); give the global rank of a member");
  bed_.From(a_, Present(1, {In(set, Broadcast("y", {1}, {3}, 2))}));
  bed_.From(b_, Present(1, {In(set, Broadcast("y", {2}, {3}, 2))}));
  EXPECT_EQ(a_.runs.size(), 1u);
}

TEST_F(SetsTest, ARootThatStandsAsideHasNothingToBroadcast) {
  const uint32_t set = Set({1, 2});
  auto aside = In(set, Broadcast("x", {2}, {3}, 2));
  aside.mutable_signatures(0)->set_aside(true);
  bed_.From(a_, Present(1, {In(set, Broadcast("x", {1}, {3}, 2))}));
  bed_.From(b_, Present(1, {aside}));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_THAT(a_.failures[0].message(),
              HasSubstr("its root, rank 2, has joined"));
}

TEST_F(SetsTest, ALeavingRankFailsWhatNeedsItAndNothingElse) {
  const uint32_t with = Set({1, 4});
  const uint32_t without = Set({1, 2});
  bed_.From(a_, Present(1, {In(with, Allreduce("x", {1}, {3})),
                            In(without, Allreduce("x", {1}, {3}))}));
  bed_.From(c_, Gone(1, 4, true));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].identity().process_set(), with);
  EXPECT_EQ(a_.failures[0].message(),
            "rank 4 (node n2) has shut down; allreduce 'x' of process set 1 "
            "needs it");
  bed_.From(b_, Present(1, {In(without, Allreduce("x", {2}, {3}))}));
  EXPECT_EQ(a_.runs.size(), 1u);
  EXPECT_EQ(b_.runs.size(), 1u);
  // The text names the rank that the operation needs, not the first that left.
  bed_.From(b_, Gone(1, 2, true));
  bed_.From(a_, Present(1, {In(without, Allreduce("y", {1}, {3}))}));
  ASSERT_EQ(a_.failures.size(), 2u);
  EXPECT_EQ(a_.failures[1].message(),
            "rank 2 (node n1) has shut down; allreduce 'y' of process set 2 "
            "needs it");
}

TEST_F(SetsTest, ALeavingRankLeavesHeldOperationsOfOtherSets) {
  const uint32_t with = Set({1, 4});
  const uint32_t without = Set({1, 2});
  for (uint32_t g = 1; g <= 2; ++g) {
    std::vector<proto::PresentOperation> on_a, on_b, on_c;
    for (const char* name : {"x", "y"}) {
      // In the second step one is missing: the other is held.
      if (g == 2 && name[0] == 'y') continue;
      on_a.push_back(In(with, Allreduce(name, {1}, {3}, g)));
      on_a.push_back(In(without, Allreduce(name, {1}, {3}, g)));
      on_b.push_back(In(without, Allreduce(name, {2}, {3}, g)));
      on_c.push_back(In(with, Allreduce(name, {4}, {3}, g)));
    }
    bed_.From(a_, Present(1, on_a));
    bed_.From(b_, Present(1, on_b));
    bed_.From(c_, Present(1, on_c));
  }
  EXPECT_EQ(bed_.core().totals().pending_operations, 2u);
  const size_t runs = b_.runs.size();
  bed_.From(c_, Gone(1, 4, true));
  EXPECT_EQ(a_.failures.size(), 1u);
  EXPECT_TRUE(b_.failures.empty());
  bed_.Pass(milliseconds(5));
  EXPECT_EQ(b_.runs.size(), runs + 1);
}

TEST_F(SetsTest, ALeavingRankAbortsRequestsForSets) {
  bed_.From(a_, MakeSet(0, 1, {0, 1}));
  bed_.From(c_, Gone(1, 4, true));
  for (const Executor* e : {&a_, &b_, &c_}) {
    ASSERT_EQ(e->set_replies.size(), 1u);
    EXPECT_EQ(e->set_replies[0].code(),
              static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_THAT(e->set_replies[0].message(), HasSubstr("rank 4 (node n2)"));
  }
}

TEST_F(SetsTest, ASetWithAPendingOperationIsNotRemoved) {
  const uint32_t set = Set({1, 2});
  bed_.From(a_, Present(1, {In(set, Allreduce("x", {1}, {3}))}));
  All([&](uint32_t rank) { return RemoveSet(rank, 2, set); });
  EXPECT_THAT(a_.set_replies.back().message(), HasSubstr("not complete"));
  bed_.From(b_, Present(1, {In(set, Allreduce("x", {2}, {3}))}));
  EXPECT_EQ(a_.runs.size(), 1u);
  All([&](uint32_t rank) { return RemoveSet(rank, 3, set); });
  EXPECT_EQ(c_.set_replies.back().code(), 0);
  EXPECT_TRUE(c_.set_replies.back().remove());
  // What crosses with the removal fails, by id or by name.
  auto again = In(set, Allreduce("x", {1}, {3}, 2));
  again.set_id(a_.runs[0].operations(0).id());
  bed_.From(a_, Present(1, {again, In(set, Allreduce("y", {1}, {3}))}));
  ASSERT_EQ(a_.failures.size(), 2u);
  EXPECT_EQ(a_.failures[0].message(),
            "allreduce 'x' of process set 1 cannot run: the set has been "
            "removed");
  EXPECT_FALSE(a_.refused);
}

TEST_F(SetsTest, AllgatherOfASetHasZerosForOthers) {
  const uint32_t set = Set({0, 2, 3});
  bed_.From(a_, Present(1, {In(set, Allgather("g", {0}, {4}, 10))}));
  // Local rank 0 of n1 is rank 3.
  bed_.From(b_, Present(1, {In(set, Allgather("g", {3, 2}, {5, 6}, 10))}));
  ASSERT_EQ(b_.runs.size(), 1u);
  EXPECT_THAT(b_.runs[0].first_dims(), ElementsAre(4, 0, 6, 5, 0));
  EXPECT_EQ(bed_.issued()[0].bytes, 15u * 10 * 4);
}

TEST_F(SetsTest, AlltoallGetsTheWholeMatrixByPosition) {
  const uint32_t set = Set({0, 2, 3});
  bed_.From(a_, Present(1, {In(set, Alltoall("t", {0}, {{1, 2, 3}}, 10))}));
  bed_.From(
      b_,
      Present(1, {In(set, Alltoall("t", {3, 2}, {{7, 8, 9}, {4, 5, 6}}, 10))}));
  ASSERT_EQ(a_.runs.size(), 1u);
  ASSERT_EQ(b_.runs.size(), 1u);
  EXPECT_TRUE(c_.runs.empty());
  EXPECT_THAT(a_.runs[0].splits(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(a_.runs[0].first_dims_size(), 0);
  EXPECT_EQ(bed_.issued()[0].kind, Kind::kAlltoall);
  EXPECT_EQ(bed_.issued()[0].bytes, 45u * 10 * 4);
}

TEST_F(SetsTest, AlltoallBeyondAllMemoryFails) {
  const uint32_t set = Set({0, 2});
  const int64_t rows = int64_t{1} << 40;
  bed_.From(a_, Present(1, {In(set, Alltoall("t", {0}, {{rows, 0}}, 4))}));
  bed_.From(b_, Present(1, {In(set, Alltoall("t", {2}, {{rows, 1}}, 4))}));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_THAT(a_.failures[0].message(), HasSubstr("2^44 bytes are allowed"));
}

TEST_F(SetsTest, BadSplitsAreABadMessage) {
  auto good = Alltoall("t", {0, 1}, {{1, 0, 0, 0, 2}, {0, 0, 0, 0, 0}}, 4);
  std::vector<proto::PresentOperation> bad(5, good);
  bad[0].mutable_splits()->RemoveLast();
  bad[1].set_splits(1, 1);  // more rows than it has
  bad[2].set_splits(1, -1);
  bad[2].set_splits(0, 2);
  bad[3].add_splits(0);
  bad[4].clear_first_dims();
  for (const auto& op : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1");
    bed.Ready(a, 5, {0, 1});
    bed.Ready(b, 5, {2, 3, 4});
    bed.From(a, Present(1, {op}));
    EXPECT_TRUE(a.refused) << op.ShortDebugString();
  }
  bed_.From(a_, Present(1, {good}));
  EXPECT_FALSE(a_.refused);
}

TEST_F(SetsTest, ReducescatterCountsItsInput) {
  auto scatter = [](std::vector<uint32_t> ranks) {
    proto::PresentOperation op = Allreduce("r", ranks, {7, 2});
    const auto kind = static_cast<uint32_t>(Kind::kReducescatter);
    op.mutable_identity()->set_kind(kind);
    op.mutable_signatures(0)->set_kind(kind);
    return op;
  };
  bed_.From(a_, Present(1, {scatter({0, 1})}));
  bed_.From(b_, Present(1, {scatter({2, 3})}));
  bed_.From(c_, Present(1, {scatter({4})}));
  ASSERT_EQ(c_.runs.size(), 1u);
  EXPECT_EQ(c_.runs[0].first_dims_size(), 0);
  EXPECT_EQ(bed_.issued()[0].bytes, 56u);
}

TEST_F(SetsTest, BarriersCompareCountsOfUnnamedOperations) {
  auto barrier = [](std::vector<uint32_t> ranks, int64_t allreduces) {
    proto::PresentOperation op = Allreduce("b", ranks, {0, allreduces});
    op.mutable_signatures(0)->mutable_shape()->Resize(8, 0);
    const auto kind = static_cast<uint32_t>(Kind::kBarrier);
    op.mutable_identity()->set_kind(kind);
    op.mutable_signatures(0)->set_kind(kind);
    return op;
  };
  const uint32_t set = Set({1, 4});
  bed_.From(a_, Present(1, {In(set, barrier({1}, 3))}));
  bed_.From(c_, Present(1, {In(set, barrier({4}, 2))}));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_THAT(a_.failures[0].message(), HasSubstr("3 x allreduce"));
  auto again = In(set, barrier({1}, 3));
  again.set_generation(2);
  bed_.From(a_, Present(1, {again}));
  again = In(set, barrier({4}, 3));
  again.set_generation(2);
  bed_.From(c_, Present(1, {again}));
  EXPECT_EQ(a_.runs.size(), 1u);
  // A barrier has no elements.
  auto bad = In(set, barrier({4}, 3));
  bad.mutable_signatures(0)->set_shape(0, 2);
  bed_.From(c_, Present(1, {bad}));
  EXPECT_TRUE(c_.refused);
}

TEST_F(SetsTest, AJoinIsNoOperation) {
  auto join = Allreduce("x", {4}, {3});
  join.mutable_identity()->set_kind(static_cast<uint32_t>(Kind::kJoin));
  bed_.From(c_, Present(1, {join}));
  EXPECT_TRUE(c_.refused);
}

TEST(SetsLimitTest, AlltoallOverTooManyRanksFails) {
  TestBed bed;
  constexpr uint32_t kPerNode = 48;
  constexpr uint32_t kNodes = kMaxAlltoallRanks / kPerNode + 1;
  std::vector<Executor*> nodes;
  for (uint32_t i = 0; i < kNodes; ++i) {
    nodes.push_back(&bed.Connect("j", "n" + std::to_string(i)));
    Ranks ranks(kPerNode);
    for (uint32_t k = 0; k < kPerNode; ++k) ranks[k] = i * kPerNode + k;
    bed.Ready(*nodes.back(), kNodes * kPerNode, ranks);
  }
  for (uint32_t i = 0; i < kNodes; ++i) {
    Ranks ranks(kPerNode);
    for (uint32_t k = 0; k < kPerNode; ++k) ranks[k] = i * kPerNode + k;
    // Its splits do not matter.
    auto op = Alltoall("t", ranks,
                       std::vector<std::vector<int64_t>>(kPerNode, {1}), 1);
    bed.From(*nodes[i], Present(1, {op}));
  }
  ASSERT_EQ(nodes[0]->failures.size(), 1u);
  EXPECT_THAT(nodes[0]->failures[0].message(),
              HasSubstr("has more than 1024 ranks"));
}

}  // namespace
}  // namespace maypole::coordinator
