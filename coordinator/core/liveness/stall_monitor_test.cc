#include "coordinator/core/liveness/stall_monitor.h"

#include "coordinator/core/testing/epoch_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Node 0 has reported an allreduce for which it waits for node 1.
class StallMonitorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const proto::PresentOperation message = Allreduce("x", {0, 1}, {3});
    ASSERT_TRUE(table_.Note(Time{}, 0, message, *table_.Resolve(message)).ok());
    stalls_.OnEvent(Time{});
  }
  // Lets time pass, with the deadlines on the way.
  void Pass(Time until) {
    while (stalls_.Deadline() && *stalls_.Deadline() <= until) {
      stalls_.OnTime(*stalls_.Deadline());
    }
  }

  EpochBed bed_{2};
  ProcessSets sets_{&bed_.nodes, &bed_.departures, 4};
  Joins joins_{&bed_.nodes, &bed_.departures, 4};
  OperationTable table_{&bed_.nodes.members(), &sets_};
  StallMonitor stalls_{
      &bed_.nodes, &bed_.departures,
      &sets_,      &table_,
      &joins_,     {.stall_check = seconds(1), .stall_shutdown = seconds(9)}};
};

TEST_F(StallMonitorTest, ANodeThatWaitsIsNotified) {
  Pass(seconds(2));
  const auto sent = bed_.Take();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, 0u);
  EXPECT_THAT(sent[0].second.notice().text(), HasSubstr("allreduce 'x'"));
  EXPECT_EQ(stalls_.stragglers().ranks(), 2u);
  EXPECT_TRUE(stalls_.verdict().ok());
}

TEST_F(StallMonitorTest, TheShutdownTimeEndsTheEpoch) {
  Pass(seconds(8));
  EXPECT_TRUE(stalls_.verdict().ok());
  Pass(seconds(12));
  EXPECT_TRUE(absl::IsAborted(stalls_.verdict()));
  EXPECT_THAT(std::string(stalls_.verdict().message()),
              HasSubstr("the stall shutdown time (9 s) has passed: "));
}

}  // namespace
}  // namespace maypole::coordinator
