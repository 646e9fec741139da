#include "worker/executor/loop_watchdog.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

TEST(LoopWatchdogTest, SaysWhatALongTurnIsAt) {
  std::promise<LoopWatchdog::Report> first;
  bool told = false;
  LoopWatchdog watchdog(
      [&](const LoopWatchdog::Report& report) {
        if (!std::exchange(told, true)) first.set_value(report);
      },
      milliseconds(20));
  watchdog.Awake();
  watchdog.Doing(DropEpoch{});
  const LoopWatchdog::Report report = first.get_future().get();
  EXPECT_GE(report.stands, milliseconds(20));
  EXPECT_STREQ(report.doing, "release the epoch");
}

TEST(LoopWatchdogTest, TellsAgainWhenAsLongHasPassed) {
  std::promise<void> third;
  std::vector<milliseconds> told;
  LoopWatchdog watchdog(
      [&](const LoopWatchdog::Report& report) {
        told.push_back(report.stands);
        if (told.size() == 3) third.set_value();
      },
      milliseconds(20));
  watchdog.Awake();
  third.get_future().wait();
  EXPECT_GE(told[1] - told[0], milliseconds(20));
  EXPECT_GE(told[2] - told[1], milliseconds(20));
}

TEST(LoopWatchdogTest, ShortTurnsAndSleepAreNotReported) {
  bool told = false;
  {
    LoopWatchdog watchdog([&](const auto&) { told = true; },
                          milliseconds(100000));
    watchdog.Awake();
    watchdog.Asleep();
    watchdog.Awake();
  }
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace maypole::worker
