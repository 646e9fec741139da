#include "client/sleeps.h"

#include <gtest/gtest.h>

#include <vector>

namespace maypole {
namespace {

TEST(SleepsTest, GrowToTheBoundAndStayThere) {
  Sleeps sleeps;
  std::vector<int> ladder;
  for (int i = 0; i < 10; ++i) {
    ladder.push_back(sleeps.NextMs());
    sleeps.ms += ladder.back();
  }
  EXPECT_EQ(ladder, (std::vector<int>{1, 1, 2, 4, 8, 16, 32, 36, 100, 100}));
}

// Sleeps last longer than was asked for.
TEST(SleepsTest, NeverNoneAndNeverBeyondTheBound) {
  for (int ms = 0; ms < 3 * kSleepMs; ++ms) {
    const int next = Sleeps{.ms = ms}.NextMs();
    EXPECT_GE(next, 1) << ms;
    EXPECT_LE(next, kSleepMs) << ms;
    if (ms < kSleepMs) {
      EXPECT_LE(ms + next, kSleepMs) << ms;
    }
  }
}

}  // namespace
}  // namespace maypole
