#include "client/launcher/job/rank_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

namespace maypole::launcher {
namespace {

const Time kStart = Time() + std::chrono::hours(1);

RankTable FourOnTwo() {
  RankTable ranks("rank");
  for (int rank = 0; rank < 4; ++rank) {
    ranks.Add(rank, {.node = rank / 2, .host = rank < 2 ? "" : "h2"});
  }
  ranks.OnStart(0, 70);
  ranks.OnStart(3, 73);
  return ranks;
}

TEST(RankTableTest, ARankIsNamedWithItsProcessAndPlace) {
  RankTable ranks = FourOnTwo();
  EXPECT_EQ(ranks.Who(0), "rank 0 (pid 70, node0)");
  EXPECT_EQ(ranks.Who(3), "rank 3 (pid 73, host h2)");
  EXPECT_EQ(ranks.Who(2), "rank 2 (host h2)");
}

TEST(RankTableTest, WhoEndsEndsOnce) {
  RankTable ranks = FourOnTwo();
  EXPECT_TRUE(ranks.OnEnd(1));
  EXPECT_FALSE(ranks.OnEnd(1));
}

TEST(RankTableTest, WhoHasNotCalledInitIsAwaited) {
  RankTable ranks = FourOnTwo();
  EXPECT_TRUE(ranks.OnJoin(0));
  EXPECT_FALSE(ranks.OnJoin(0));
  EXPECT_EQ(ranks.awaited(), 3);
  EXPECT_EQ(ranks.DescribeAwaited(),
            "1 of 4 ranks have called init(); waiting for node0 (rank 1), h2 "
            "(ranks 2-3)");
}

TEST(RankTableTest, AFailureIsNamedWithWhatMayHaveCausedIt) {
  RankTable ranks = FourOnTwo();
  EarlyLeavers leavers(4);
  leavers.OnRankExit(2, true, kStart);
  leavers.TakeLine(kStart + kLeaverPatience);
  Supervision killed(4);
  const Exit kill{.signaled = true, .value = SIGKILL};
  killed.OnRankExit(2, {}, kStart, {});
  killed.OnRankExit(0, kill, kStart, {});
  killed.OnRankExit(1, kill, kStart + std::chrono::milliseconds(1), {});
  EXPECT_EQ(ranks.DescribeFailure(killed, leavers, false),
            "rank 0 (pid 70, node0) was killed by signal 9 (Killed); rank 1 "
            "(node0) was killed by signal 9 (Killed); long before, rank 2 "
            "(host h2) had exited with code 0");

  Supervision error(4);
  error.OnRankExit(3, {}, kStart, {});
  error.OnRankExit(0, {.value = 1}, kStart, {.maypole_error = true});
  EXPECT_EQ(ranks.DescribeFailure(error, leavers, false),
            "rank 0 (pid 70, node0) exited with code 1 after a Maypole error, "
            "which another rank may have caused: rank 3 (pid 73, host h2) "
            "exited with code 0");
  EXPECT_EQ(ranks.DescribeFailure(error, leavers, true),
            "rank 0 (pid 70, node0) exited with code 1");
}

TEST(RankTableTest, OfManyTheFirstAreNamed) {
  RankTable ranks("rank");
  Supervision supervision(7);
  for (int rank = 0; rank < 7; ++rank) {
    ranks.Add(rank, {});
    supervision.OnRankExit(rank, {.signaled = true, .value = SIGKILL},
                           kStart + std::chrono::milliseconds(rank), {});
  }
  const std::string text =
      ranks.DescribeFailure(supervision, EarlyLeavers(7), false);
  EXPECT_NE(text.find("; rank 4 (node0)"), text.npos) << text;
  EXPECT_EQ(text.find("; rank 5 (node0)"), text.npos) << text;
  EXPECT_TRUE(text.ends_with("; 2 more were killed by signals")) << text;
}

}  // namespace
}  // namespace maypole::launcher
