#include "client/launcher/job/start_progress.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

Time At(int ms) { return Time() + std::chrono::hours(1) + milliseconds(ms); }

std::string Text(const std::optional<LinePiece>& piece) {
  if (!piece) return "-";
  return piece->text + (piece->end == LineEnd::kReturn ? "\\r" : "\\n");
}

TEST(StartProgressTest, AQuickStartIsSilent) {
  StartProgress p(0);
  EXPECT_EQ(p.deadline(), std::nullopt);
  p.Begin(At(0));
  p.Begin(At(100));
  EXPECT_EQ(p.deadline(), At(10000));
  EXPECT_FALSE(p.due(At(9999)));
  EXPECT_EQ(Text(p.End("all are there")), "-");
  EXPECT_EQ(p.deadline(), std::nullopt);
}

TEST(StartProgressTest, InAFileALineComesAgainOnlyIfItHasChanged) {
  StartProgress p(0);
  p.Begin(At(0));
  EXPECT_TRUE(p.due(At(10000)));
  EXPECT_EQ(Text(p.Take("1 of 3", At(10000))), "1 of 3\\n");
  EXPECT_EQ(p.deadline(), At(20000));
  EXPECT_EQ(Text(p.Take("1 of 3", At(20000))), "-");
  EXPECT_EQ(Text(p.Take("2 of 3", At(30000))), "2 of 3\\n");
  EXPECT_EQ(Text(p.End("all 3")), "all 3\\n");
  EXPECT_EQ(Text(p.End("all 3")), "-");
}

TEST(StartProgressTest, OnATerminalItIsRewrittenInPlace) {
  StartProgress p(12);
  p.Begin(At(0));
  EXPECT_EQ(Text(p.Take("waiting for a very long name", At(10000))),
            "waiting for \\r");
  EXPECT_EQ(p.deadline(), At(11000));
  EXPECT_EQ(Text(p.Take("short", At(11000))), "short       \\r");
  EXPECT_EQ(Text(p.Take("short", At(12000))), "-");
  EXPECT_EQ(Text(p.End("all")), "all  \\n");
}

TEST(StartProgressTest, TheNextWaitBeginsAnew) {
  StartProgress p(0);
  p.Begin(At(0));
  EXPECT_EQ(Text(p.Take("x", At(10000))), "x\\n");
  EXPECT_EQ(Text(p.End("")), "-");
  p.Begin(At(12000));
  EXPECT_EQ(p.deadline(), At(22000));
  EXPECT_EQ(Text(p.Take("x", At(22000))), "x\\n");
}

TEST(StartProgressTest, Groups) {
  EXPECT_EQ(RankGroups({}), "");
  EXPECT_EQ(RankGroups({3}), "3");
  EXPECT_EQ(RankGroups({1, 3, 4, 5, 9}), "1,3-5,9");
  EXPECT_EQ(RankGroups({1, 3, 5, 7, 9, 11, 13, 15}), "1,3,5,7,9,11,...");
  EXPECT_EQ(FirstOf({"a"}), "a");
  EXPECT_EQ(FirstOf({"a", "b", "c", "d", "e", "f"}), "a, b, c, d and 2 more");
}

}  // namespace
}  // namespace maypole::launcher
