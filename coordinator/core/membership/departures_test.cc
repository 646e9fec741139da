// What is announced of ranks that leave, one after the other.
#include "coordinator/core/membership/departures.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

class LeavingTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kEach = 32;

  LeavingTest() {
    bed_.Ready(a_, 2 * kEach, Ranks(0));
    bed_.Ready(b_, 2 * kEach, Ranks(kEach));
  }
  static std::vector<uint32_t> Ranks(uint32_t first) {
    std::vector<uint32_t> ranks(kEach);
    std::iota(ranks.begin(), ranks.end(), first);
    return ranks;
  }
  void Leave(uint32_t from, uint32_t to) {
    for (uint32_t rank = from; rank < to; ++rank) {
      bed_.From(rank < kEach ? a_ : b_, Gone(1, rank, true));
    }
  }
  std::vector<proto::RankLeft> Told() const {
    std::vector<proto::RankLeft> out;
    for (const auto& m : b_.inbox) {
      if (m.has_rank_left()) out.push_back(m.rank_left());
    }
    return out;
  }

  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(LeavingTest, FewRanksAreToldOfAtOnceAndEachByItself) {
  Leave(0, kLeavesToldAtOnce);
  ASSERT_EQ(Told().size(), kLeavesToldAtOnce);
  EXPECT_EQ(Told().back().rank(), kLeavesToldAtOnce - 1);
  EXPECT_EQ(Told().back().others_size(), 0);
  EXPECT_THAT(Told().back().message(),
              ::testing::StartsWith("rank 15 (node n0) has shut down"));
}

TEST_F(LeavingTest, ManyRanksAreToldOfTogether) {
  Leave(0, kLeavesToldAtOnce);
  bed_.Pass(kLeavePause);
  Leave(kLeavesToldAtOnce, kEach);
  EXPECT_EQ(Told().size(), kLeavesToldAtOnce);
  bed_.Pass(kLeavePause);
  ASSERT_EQ(Told().size(), kLeavesToldAtOnce + 1);
  const proto::RankLeft all = Told().back();
  EXPECT_EQ(all.rank(), kLeavesToldAtOnce);
  EXPECT_EQ(all.others_size(), static_cast<int>(kEach - kLeavesToldAtOnce - 1));
  EXPECT_EQ(*all.others().rbegin(), kEach - 1);
  // From then on, the next ones wait for a pause.
  Leave(kEach, kEach + 2);
  EXPECT_EQ(Told().size(), kLeavesToldAtOnce + 1);
  bed_.Pass(kLeavePause);
  EXPECT_EQ(Told().size(), kLeavesToldAtOnce + 2);
}

TEST_F(LeavingTest, TheLastRankEndsThePause) {
  Leave(0, 2 * kEach);
  size_t ranks = 0;
  for (const proto::RankLeft& m : Told()) ranks += 1 + m.others_size();
  EXPECT_EQ(ranks, 2 * kEach);
  EXPECT_LE(Told().size(), kLeavesToldAtOnce + 2);
}

TEST_F(LeavingTest, WhatNeedsARankThatIsNotToldOfYetFailsAtOnce) {
  Leave(0, kLeavesToldAtOnce + 4);
  bed_.From(b_, Present(1, {Allreduce("x", Ranks(kEach), {3})}));
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_THAT(b_.failures[0].message(), ::testing::HasSubstr("has shut down"));
}

}  // namespace
}  // namespace maypole::coordinator
