#include "worker/core/timeline/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace maypole::worker {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1000 * kMs;

// Queries at `now`; the message takes `there`, the reply `back`. Returns the
// time of the reply.
int64_t Ask(ClockOffset* clock, int64_t now, int64_t offset, int64_t there,
            int64_t back) {
  const int64_t sent = clock->Query(now);
  clock->OnReply(sent, now + there + offset, now + there + back);
  return now + there + back;
}

TEST(ClockOffset, TheFastestAnswerCounts) {
  ClockOffset clock;
  EXPECT_FALSE(clock.known());
  int64_t now = kSecond;
  now = Ask(&clock, now, 1000 * kSecond, 40 * kMs, kMs);
  EXPECT_TRUE(clock.known());
  EXPECT_EQ(clock.ns(), 1000 * kSecond + (40 - 1) * kMs / 2);
  now = Ask(&clock, now, 1000 * kSecond, kMs, kMs);
  EXPECT_EQ(clock.ns(), 1000 * kSecond);
  now = Ask(&clock, now, 1000 * kSecond, kMs, 90 * kMs);
  EXPECT_EQ(clock.ns(), 1000 * kSecond);
}

TEST(ClockOffset, AsksInARowAtFirstAndThenNowAndThen) {
  ClockOffset clock;
  int64_t now = kSecond;
  for (int i = 0; i < ClockOffset::kFirst; ++i) {
    EXPECT_FALSE(clock.ready());
    EXPECT_TRUE(clock.Due(now));
    now = Ask(&clock, now, 0, kMs, kMs);
  }
  EXPECT_TRUE(clock.ready());
  EXPECT_FALSE(clock.Due(now));
  EXPECT_TRUE(clock.Due(now + ClockOffset::kPeriodNs));
  // Without a reply it queries again, and a late reply does not count.
  const int64_t lost = clock.Query(now + kSecond);
  EXPECT_FALSE(clock.Due(now + kSecond + kMs));
  EXPECT_TRUE(clock.Due(now + kSecond + ClockOffset::kPatienceNs));
  clock.Query(now + 3 * kSecond);
  clock.OnReply(lost, 77 * kSecond, now + 3 * kSecond + 1);
  EXPECT_EQ(clock.ns(), 0);
}

TEST(ClockOffset, AnOldAnswerGrowsUncertain) {
  ClockOffset clock;
  int64_t now = Ask(&clock, kSecond, 0, kMs / 10, kMs / 10);
  // A minute later the clocks may be 6 ms apart, so a round trip of 4 ms is
  // better than what is known.
  now += 60 * kSecond;
  EXPECT_EQ(clock.Uncertainty(now) / kMs, 6);
  Ask(&clock, now, 3 * kMs, 2 * kMs, 2 * kMs);
  EXPECT_EQ(clock.ns(), 3 * kMs);
}

// Whatever the delays, the error of the offset is at most Uncertainty().
TEST(ClockOffset, IsWithinItsUncertainty) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    ClockOffset clock;
    int64_t now = kSecond;
    int64_t offset = static_cast<int64_t>(random()) * 1000 - kSecond;
    for (int i = 0; i < 50; ++i) {
      now = Ask(&clock, now, offset, random() % (20 * kMs),
                random() % (20 * kMs));
      EXPECT_LE(std::abs(clock.ns() - offset), clock.Uncertainty(now) + 1);
      now += kSecond;
      offset += static_cast<int64_t>(random() % 100'000) - 50'000;  // drift
    }
  }
}

}  // namespace
}  // namespace maypole::worker
