#include "coordinator/election/leadership.h"

#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

BootInstant now{};
BootInstant Now() { return now; }

TEST(Leadership, LeadsUntilTheEndOfTheLeaseAndNotLonger) {
  now = seconds(100);
  Leadership leadership(Now);
  EXPECT_FALSE(leadership.Leads());
  leadership.Begin(7, seconds(105));
  EXPECT_TRUE(leadership.Leads());
  EXPECT_EQ(leadership.term(), 7u);
  now = seconds(105);
  EXPECT_FALSE(leadership.Leads());
}

TEST(Leadership, NeverLeadsAgainAfterItsEnd) {
  now = seconds(100);
  Leadership leadership(Now);
  leadership.Begin(7, seconds(105));
  leadership.End();
  leadership.Prolong(seconds(110));
  leadership.Begin(8, seconds(110));
  EXPECT_FALSE(leadership.Leads());
  EXPECT_TRUE(leadership.over());
  EXPECT_THAT(std::string(leadership.NotLeader().message()),
              HasSubstr("leads no more"));
}

TEST(Leadership, AStandbyNamesTheLeader) {
  Leadership leadership(Now);
  leadership.SetOwnAddress("b:1");
  EXPECT_THAT(std::string(leadership.NotLeader().message()),
              HasSubstr("no coordinator leads now"));
  leadership.Follow({"a:1", 3});
  EXPECT_EQ(leadership.NotLeader(),
            absl::UnavailableError("the coordinator b:1 is a standby; call the "
                                   "leader, a:1"));
  EXPECT_EQ(leadership.leader().term, 3u);
}

}  // namespace
}  // namespace maypole::coordinator
