// The counters of operations and waits, and the ranks that a wait is for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/engine/rank_core.h"
#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

// The sum of the ranks' counters.
struct Counted {
  Counted(const World& w, uint32_t ranks, Kind kind) {
    for (uint32_t r = 0; r < ranks; ++r) {
      const RankCounters& counters = w.board->rank(r).counters;
      operations += counters.operations[static_cast<size_t>(kind)].load();
      bytes += counters.operation_bytes[static_cast<size_t>(kind)].load();
      mismatches += counters.mismatches.load();
    }
  }
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t mismatches = 0;
};

TEST(RankCoreCountersTest, EndedOperationsAreCountedOnceOnTheNode) {
  World w(3);
  const auto run = [&](Kind kind, size_t elements) {
    std::vector<Tensor> all;
    for (uint32_t r = 0; r < 3; ++r) {
      all.push_back(Make(kind, "t", std::vector<int32_t>(elements, 1)));
      if (kind == Kind::kAlltoall) {
        all[r].op->splits.assign(3, static_cast<int64_t>(elements / 3));
      }
      EXPECT_TRUE(w.Submit(r, all[r]).ok());
    }
    w.Settle();
    for (const Tensor& t : all) EXPECT_TRUE(t.op->done && t.op->status.ok());
  };
  run(Kind::kAllreduce, 10);
  run(Kind::kAllreduce, 5000);
  run(Kind::kAllgather, 6);
  run(Kind::kAlltoall, 9);
  struct Expected {
    Kind kind;
    uint64_t operations, bytes;
  };
  for (const Expected& e :
       {Expected{Kind::kAllreduce, 2, 20040}, Expected{Kind::kAllgather, 1, 72},
        Expected{Kind::kAlltoall, 1, 108}, Expected{Kind::kBroadcast, 0, 0}}) {
    const Counted counted(w, 3, e.kind);
    EXPECT_EQ(counted.operations, e.operations) << Name(e.kind);
    EXPECT_EQ(counted.bytes, e.bytes) << Name(e.kind);
  }
}

TEST(RankCoreCountersTest, AMismatchIsCountedOnceAndIsNoOperation) {
  World w(3);
  std::vector<Tensor> all;
  for (uint32_t r = 0; r < 3; ++r) {
    all.push_back(Make(Kind::kAllreduce, "t", std::vector<int32_t>(4 + r, 1)));
    ASSERT_TRUE(w.Submit(r, all[r]).ok());
  }
  w.Settle();
  for (const Tensor& t : all) {
    EXPECT_EQ(t.op->status.code(), Code::kFailedPrecondition);
  }
  EXPECT_EQ(Counted(w, 3, Kind::kAllreduce).mismatches, 1u);
  EXPECT_EQ(Counted(w, 3, Kind::kAllreduce).operations, 0u);
}

TEST(RankCoreCountersTest, AWaitKnowsForWhomItIs) {
  World w(3);
  const std::vector<int32_t> large(5000, 1);  // it takes several steps
  std::vector<Tensor> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(Make(Kind::kAllreduce, "t", large));
  }
  uint64_t late = 7;
  ASSERT_TRUE(w.Submit(1, all[1]).ok());
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kAgent);
  EXPECT_EQ(late, 0u);
  w.Settle();  // its slot is there
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b101u);
  ASSERT_TRUE(w.Submit(0, all[0]).ok());
  w.Settle();
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b100u);
  ASSERT_TRUE(w.Submit(2, all[2]).ok());
  while (w.board->arrival(0, 2).generation.load() == 0) w.Step();
  ASSERT_FALSE(all[1].op->done.load());
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kData);
  EXPECT_EQ(late, 0u);
  w.Settle();
  EXPECT_TRUE(all[1].op->done.load());

  const auto join = w.Join(2);
  w.Settle();
  EXPECT_EQ(w.cores[2]->WaitsFor(*join, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 0b011u);
}

// Over several nodes a wait is for the ranks until GPUs execute the operation,
// which no ticket shows.
TEST(RankCoreCountersTest, GpusAreWaitedForFromTheRunOn) {
  World w(2);
  w.negotiated = true;
  const std::vector<int32_t> values(4, 1);
  std::vector<Tensor> all;
  for (uint32_t r = 0; r < 2; ++r) {
    all.push_back(Make(Kind::kAllreduce, "t", values));
    ASSERT_TRUE(w.Submit(r, all[r]).ok());
  }
  w.Settle();
  uint64_t late = 7;
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kNodes);
  w.board->slot(0).on_gpus.store(Tagged(1, 1));
  EXPECT_EQ(w.cores[1]->WaitsFor(*all[1].op, &late), WaitFor::kData);
  EXPECT_EQ(late, 0u);
}

TEST(RankCoreCountersTest, SleepsAreCountedWithThoseWhomTheyWereFor) {
  World w(3);
  w.cores[1]->CountSleep(WaitFor::kRanks, 0b101, 70, true);
  w.cores[1]->CountSleep(WaitFor::kRanks, 0b100, 30, false);
  w.cores[1]->CountSleep(WaitFor::kData, 0, 5, true);
  const RankCounters& counters = w.board->rank(1).counters;
  const auto ranks = static_cast<size_t>(WaitFor::kRanks);
  const auto data = static_cast<size_t>(WaitFor::kData);
  EXPECT_EQ(counters.waits[ranks].load(), 1u);
  EXPECT_EQ(counters.wait_ns[ranks].load(), 100u);
  EXPECT_EQ(counters.waits[data].load(), 1u);
  EXPECT_EQ(counters.wait_ns[data].load(), 5u);
  EXPECT_EQ(counters.waited_for_ns[0].load(), 70u);
  EXPECT_EQ(counters.waited_for_ns[1].load(), 0u);
  EXPECT_EQ(counters.waited_for_ns[2].load(), 100u);
}

}  // namespace
}  // namespace maypole
