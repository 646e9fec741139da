#include "client/session/stall_notice.h"

#include <gtest/gtest.h>

namespace maypole {
namespace {

using std::chrono::seconds;
using Clock = StallNotice::Clock;

TEST(StallNoticeTest, IsDueAfterTenSecondsInWhichNothingMoved) {
  const Clock::time_point start = Clock::now();
  StallNotice notice;
  EXPECT_FALSE(notice.Due(start));
  EXPECT_FALSE(notice.Due(start + seconds(9)));
  notice.Moved();
  EXPECT_FALSE(notice.Due(start + seconds(11)));
  EXPECT_FALSE(notice.Due(start + seconds(20)));
  EXPECT_TRUE(notice.Due(start + seconds(21)));
  EXPECT_EQ(notice.Stood(start + seconds(21)), seconds(10));
}

TEST(StallNoticeTest, IsDueAgainAfterFourTimesAsLong) {
  const Clock::time_point start = Clock::now();
  StallNotice notice;
  notice.Due(start);
  EXPECT_TRUE(notice.Due(start + seconds(10)));
  EXPECT_FALSE(notice.Due(start + seconds(39)));
  EXPECT_TRUE(notice.Due(start + seconds(40)));
  EXPECT_FALSE(notice.Due(start + seconds(41)));
}

TEST(StallNoticeTest, TellsWhetherTheExecutorsLoopHasTurned) {
  const Clock::time_point start = Clock::now();
  StallNotice notice;
  notice.Due(start, 7);
  notice.Due(start + seconds(1), 0);
  EXPECT_TRUE(notice.Due(start + seconds(10), 7));
  EXPECT_TRUE(notice.executor_turned());
  notice.Due(start + seconds(20), 7);
  EXPECT_TRUE(notice.Due(start + seconds(40), 7));
  EXPECT_FALSE(notice.executor_turned());
}

}  // namespace
}  // namespace maypole
