#include "client/launcher/job/early_leavers.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

Time At(int ms) { return Time() + std::chrono::hours(1) + milliseconds(ms); }

TEST(EarlyLeaversTest, ANormalEndIsSilent) {
  EarlyLeavers leavers(3);
  leavers.OnRankExit(1, true, At(0));
  leavers.OnRankExit(0, true, At(500));
  EXPECT_EQ(leavers.TakeLine(At(9999)), "");
  leavers.OnRankExit(2, true, At(9999));
  EXPECT_FALSE(leavers.deadline());
  EXPECT_EQ(leavers.TakeLine(At(20000)), "");
}

TEST(EarlyLeaversTest, WhoIsWaitedForIsToldOnce) {
  EarlyLeavers leavers(4);
  leavers.OnRankExit(1, true, At(0));
  EXPECT_EQ(leavers.deadline(), At(10000));
  EXPECT_EQ(leavers.TakeLine(At(10000)),
            "rank 1 exited with code 0; waiting for ranks 0,2,3");
  EXPECT_FALSE(leavers.deadline());
  EXPECT_EQ(leavers.TakeLine(At(30000)), "");
}

TEST(EarlyLeaversTest, SeveralShareALine) {
  EarlyLeavers leavers(4);
  leavers.OnRankExit(3, true, At(0));
  leavers.OnRankExit(1, true, At(100));
  EXPECT_EQ(leavers.TakeLine(At(10000)),
            "ranks 1,3 exited with code 0; waiting for ranks 0,2");
  leavers.OnRankExit(0, true, At(60000));
  EXPECT_EQ(leavers.TakeLine(At(70000)),
            "rank 0 exited with code 0; waiting for rank 2");
  EXPECT_EQ(leavers.named(), (std::vector<int>{1, 3, 0}));
}

TEST(EarlyLeaversTest, AFailureSaysEnough) {
  EarlyLeavers leavers(3);
  leavers.OnRankExit(1, true, At(0));
  leavers.OnRankExit(0, false, At(100));
  EXPECT_FALSE(leavers.deadline());
  EXPECT_EQ(leavers.TakeLine(At(10000)), "");
  EXPECT_TRUE(leavers.named().empty());
}

}  // namespace
}  // namespace maypole::launcher
