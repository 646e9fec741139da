#include <gtest/gtest.h>

#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class StatsWatchTest : public ExecutorCoreTest {
 protected:
  void Watch(uint64_t epoch, uint32_t every_ms, uint32_t for_ms) {
    proto::CoordinatorMessage m;
    m.set_epoch(epoch);
    m.mutable_watch_stats()->set_every_ms(every_ms);
    m.mutable_watch_stats()->set_for_ms(for_ms);
    core_.OnCoordinator(m);
  }
  // How often statistics are sent in this time, with a look every 50 ms.
  size_t SentUntil(int64_t until_ms) {
    size_t sent = 0;
    while (now_ms_ < until_ms) {
      core_.OnTime(now_ms_ += 50);
      for (const SendStats& s : Take<SendStats>()) {
        EXPECT_EQ(s.epoch, 1u);
        ++sent;
      }
    }
    return sent;
  }
  int64_t now_ms_ = 0;
};

TEST_F(StatsWatchTest, AreSentAsLongAsSomebodyLooks) {
  StartTwoNodes();
  EXPECT_EQ(SentUntil(1000), 0u);
  Watch(1, 1000, 5000);
  EXPECT_EQ(SentUntil(4000), 3u);  // at 1050, 2050, 3050
  Watch(1, 1000, 5000);  // again
  EXPECT_EQ(SentUntil(9000), 5u);  // the last one at 8050
  EXPECT_EQ(SentUntil(20000), 0u);
}

TEST_F(StatsWatchTest, AreNotSentTooOften) {
  StartOneNode();
  Watch(1, 0, 1000);
  EXPECT_EQ(SentUntil(2000), 10u);  // every 100 ms, for a second
}

TEST_F(StatsWatchTest, AreOfTheRunningEpoch) {
  Watch(1, 100, 5000);
  EXPECT_EQ(SentUntil(1000), 0u);
  StartTwoNodes();
  Watch(2, 100, 5000);
  EXPECT_EQ(SentUntil(2000), 0u);
}

}  // namespace
}  // namespace maypole::worker
