#include "client/session/backoff.h"

#include <gtest/gtest.h>

#include <vector>

namespace maypole {
namespace {

TEST(BackoffTest, GrowToTheBoundAndStayThere) {
  Backoff backoff;
  std::vector<int> ladder;
  for (int i = 0; i < 10; ++i) {
    ladder.push_back(backoff.NextMs());
    backoff.ms += ladder.back();
  }
  EXPECT_EQ(ladder, (std::vector<int>{1, 1, 2, 4, 8, 16, 32, 36, 100, 100}));
}

// Real sleeps last longer than requested, so any sum may occur.
TEST(BackoffTest, NeverNoneAndNeverBeyondTheBound) {
  for (int ms = 0; ms < 3 * kMaxBackoffMs; ++ms) {
    const int next = Backoff{.ms = ms}.NextMs();
    EXPECT_GE(next, 1) << ms;
    EXPECT_LE(next, kMaxBackoffMs) << ms;
    if (ms < kMaxBackoffMs) {
      EXPECT_LE(ms + next, kMaxBackoffMs) << ms;
    }
  }
}

}  // namespace
}  // namespace maypole
