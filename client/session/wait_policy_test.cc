#include "client/session/wait_policy.h"

#include <gtest/gtest.h>

namespace maypole {
namespace {

using std::chrono::microseconds;

TEST(WaitPolicyTest, ACoreForEachRank) {
  const WaitPolicy w = ChooseWaitPolicy(4, UnlimitedCores(), 4, 1);
  EXPECT_FALSE(w.yields);
  EXPECT_EQ(w.spin, microseconds(200));
  EXPECT_FALSE(ChooseWaitPolicy(64, 4.0, 4, 1).yields);
  EXPECT_EQ(ChooseWaitPolicy(64, 4.0, 4, 1).spin, microseconds(200));
}

// The mask has fewer cores than ranks; or each rank is bound to its own core.
TEST(WaitPolicyTest, FewerCoresThanRanks) {
  const WaitPolicy w = ChooseWaitPolicy(1, UnlimitedCores(), 2, 1);
  EXPECT_TRUE(w.yields);
  EXPECT_EQ(w.spin, microseconds(200));
}

TEST(WaitPolicyTest, QuotaOfLessThanACoreForEachRank) {
  for (const double quota : {0.5, 1.0, 3.9}) {
    const WaitPolicy w = ChooseWaitPolicy(64, quota, 4, 1);
    EXPECT_TRUE(w.yields) << quota;
    EXPECT_EQ(w.spin, microseconds(20)) << quota;
  }
}

TEST(WaitPolicyTest, SeveralNodes) {
  const WaitPolicy w = ChooseWaitPolicy(4, UnlimitedCores(), 4, 2);
  EXPECT_FALSE(w.yields);
  EXPECT_EQ(w.spin, microseconds(20));
  EXPECT_TRUE(ChooseWaitPolicy(2, UnlimitedCores(), 4, 2).yields);
}

constexpr std::chrono::nanoseconds kNow{0};

TEST(WaitPolicyTest, SpinsThenYieldsThenSleeps) {
  const WaitPolicy w{.yields = false, .spin = microseconds(200)};
  EXPECT_EQ(w.Next(kNow, false), Pause::kSpin);
  EXPECT_EQ(w.Next(microseconds(20), false), Pause::kSpin);
  EXPECT_EQ(w.Next(microseconds(21), false), Pause::kYield);
  EXPECT_EQ(w.Next(microseconds(199), false), Pause::kYield);
  EXPECT_EQ(w.Next(microseconds(200), false), Pause::kSleep);
}

TEST(WaitPolicyTest, YieldsAtOnceToAPeerOnItsCore) {
  const WaitPolicy w{.yields = false, .spin = microseconds(200)};
  EXPECT_EQ(w.Next(kNow, true), Pause::kYield);
  EXPECT_EQ(w.Next(microseconds(199), true), Pause::kYield);
}

// A peer that computes on this core for a long time must not make the waiter
// yield forever.
TEST(WaitPolicyTest, SleepsAfterItsBudgetBesideAPeerToo) {
  const WaitPolicy w{.yields = false, .spin = microseconds(200)};
  EXPECT_EQ(w.Next(microseconds(200), true), Pause::kSleep);
}

TEST(WaitPolicyTest, YieldsAtOnceIfCoresAreScarce) {
  const WaitPolicy w{.yields = true, .spin = microseconds(200)};
  EXPECT_EQ(w.Next(kNow, false), Pause::kYield);
  EXPECT_EQ(w.Next(microseconds(200), false), Pause::kSleep);
}

TEST(WaitPolicyTest, SleepsAtOnceWithoutABudget) {
  const WaitPolicy w{.yields = false, .spin = microseconds(0)};
  EXPECT_EQ(w.Next(kNow, false), Pause::kSleep);
  EXPECT_EQ(w.Next(kNow, true), Pause::kSleep);
}

}  // namespace
}  // namespace maypole
