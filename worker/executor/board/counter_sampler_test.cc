// The ranks' counters on the board, added to the statistics page.
#include "worker/executor/board/counter_sampler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace maypole::worker {
namespace {

constexpr int kAllreduce = static_cast<int>(Kind::kAllreduce);
constexpr int kMismatch = static_cast<int>(ErrorKind::kMismatch);

class CounterSamplerTest : public testing::Test {
 protected:
  CounterSamplerTest() {
    BoardConfig config;
    config.size = config.local_size = 3;
    config.slots = 64;
    config.runs = 2;
    config.ring_depth = 2;
    config.chunk_bytes = 4096;
    config.pool_buffers = 2;
    config.arena_bytes = 1 << 20;
    for (int i = 0; i < 3; ++i) config.global_rank[i] = i;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    auto stats = SharedStats::Create();
    EXPECT_TRUE(stats.ok()) << stats.status();
    stats_ = std::make_unique<SharedStats>(*std::move(stats));
    sampler_ = std::make_unique<CounterSampler>(board_.get());
  }

  RankCounters& counters(uint32_t local) {
    return board_->rank(local).counters;
  }
  StatsPage& page() { return **stats_; }
  void Sample() { sampler_->Sample(&page()); }

  std::unique_ptr<Board> board_;
  std::unique_ptr<SharedStats> stats_;
  std::unique_ptr<CounterSampler> sampler_;
};

TEST_F(CounterSamplerTest, AddsWhatHasComeSinceTheLastLook) {
  Grow(counters(0).operations[kAllreduce], 3);
  Grow(counters(0).operation_bytes[kAllreduce], 120);
  Grow(counters(1).operations[kAllreduce], 2);
  Grow(counters(2).mismatches, 1);
  Sample();
  Sample();
  EXPECT_EQ(page().operations[kAllreduce].load(), 5u);
  EXPECT_EQ(page().operation_bytes[kAllreduce].load(), 120u);
  EXPECT_EQ(page().errors[kMismatch].load(), 1u);
  Grow(counters(0).operations[kAllreduce], 4);
  Sample();
  EXPECT_EQ(page().operations[kAllreduce].load(), 9u);
}

TEST_F(CounterSamplerTest, ARankIsLateForTheTimeOfAllThatSleepForIt) {
  Grow(counters(0).waits[0], 1);
  Grow(counters(0).wait_ns[0], 300);
  Grow(counters(0).waited_for_ns[2], 300);
  Grow(counters(1).wait_ns[3], 7);
  Grow(counters(1).waited_for_ns[2], 250);
  Grow(counters(1).waited_for_ns[40], 1000);  // there is no such rank
  Sample();
  EXPECT_EQ(page().waits[0].load(), 1u);
  EXPECT_EQ(page().wait_ns[0].load(), 300u);
  EXPECT_EQ(page().wait_ns[3].load(), 7u);
  EXPECT_EQ(page().late_ns[2].load(), 550u);
  for (const int i : {0, 1, 40}) EXPECT_EQ(page().late_ns[i].load(), 0u) << i;
}

TEST_F(CounterSamplerTest, ACounterThatGoesBackCountsNothing) {
  counters(1).operations[kAllreduce] = 10;
  Sample();
  counters(1).operations[kAllreduce] = 4;
  Sample();
  counters(1).operations[kAllreduce] = 9;
  Sample();
  EXPECT_EQ(page().operations[kAllreduce].load(), 10u);
  counters(1).operations[kAllreduce] = 12;
  Sample();
  EXPECT_EQ(page().operations[kAllreduce].load(), 12u);
}

TEST_F(CounterSamplerTest, ANewEpochCountsOn) {
  Grow(counters(0).operations[kAllreduce], 3);
  Sample();
  for (uint32_t i = 0; i < 3; ++i) {
    std::memset(static_cast<void*>(&counters(i)), 0, sizeof(RankCounters));
  }
  CounterSampler next(board_.get());
  Grow(counters(0).operations[kAllreduce], 1);
  next.Sample(&page());
  EXPECT_EQ(page().operations[kAllreduce].load(), 4u);
}

TEST_F(CounterSamplerTest, ArenasAreTheMemoryThatIsUsed) {
  page().board_bytes = board_->bytes(0);
  page().board_bytes = board_->bytes(0);
  Sample();
  EXPECT_EQ(page().arena_bytes.load(), 0u);
  std::memset(board_->arena(1), 1, 64 * 1024);
  Sample();
  EXPECT_EQ(page().arena_bytes.load(), 64u * 1024);
}

TEST_F(CounterSamplerTest, ARankKeepsItsLatenessInAnEpochOfOtherRanks) {
  page().SetRanks(std::vector<int32_t>{4, 7});
  page().late_ns[0] = 40;
  page().late_ns[1] = 70;
  page().SetRanks(std::vector<int32_t>{7, 2, 4});
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {
      {7, 70}, {2, 0}, {4, 40}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(page().rank_number[i].load(), expected[i].first + 1);
    EXPECT_EQ(page().late_ns[i].load(), expected[i].second);
  }
  page().SetRanks(std::vector<int32_t>{9});
  EXPECT_EQ(page().rank_number[1].load(), 0u);
}

TEST(StatsPageTest, APageIsShared) {
  auto one = SharedStats::Create();
  ASSERT_TRUE(one.ok());
  auto other = SharedStats::Attach(Fd(dup(one->fd())));
  ASSERT_TRUE(other.ok());
  (*one)->run_ns.Observe(150000, 1e-9);
  (*one)->run_ns.Observe(40'000'000'000, 1e-9);
  (*one)->run_operations.Observe(4, 1);
  EXPECT_EQ((*other)->run_ns.counts[2].load(), 1u);  // up to 200 us
  EXPECT_EQ((*other)->run_ns.counts[16].load(), 1u);
  EXPECT_EQ((*other)->run_ns.sum.load(), 40'000'150'000u);
  EXPECT_EQ((*other)->run_operations.counts[2].load(), 1u);
  EXPECT_FALSE(SharedStats::Attach(Fd()).ok());
}

}  // namespace
}  // namespace maypole::worker
