#include "client/launcher/output/lines.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using std::chrono::seconds;

// Pieces as text: '|' stands for a newline, '<' for a return, '~' for none.
std::string Shown(const std::vector<LinePiece>& pieces) {
  std::string out;
  for (const LinePiece& p : pieces) {
    out += p.text;
    out += p.end == LineEnd::kNewline  ? '|'
           : p.end == LineEnd::kReturn ? '<'
                                       : '~';
  }
  return out;
}

TEST(LineSplitterTest, WholeLines) {
  LineSplitter s;
  EXPECT_EQ(Shown(s.Feed("a\nb\n\nc")), "a|b||");
  EXPECT_TRUE(s.HasPartial());
  EXPECT_EQ(Shown(s.Feed("d\n")), "cd|");
  EXPECT_FALSE(s.HasPartial());
}

TEST(LineSplitterTest, ReturnsEndLinesToo) {
  LineSplitter s;
  EXPECT_EQ(Shown(s.Feed("\r10%\r20%")), "<10%<");
  EXPECT_EQ(Shown(s.Feed("\r\n")), "20%|");
}

TEST(LineSplitterTest, AReturnAndNewlineMayComeApart) {
  LineSplitter s;
  EXPECT_EQ(Shown(s.Feed("a\r")), "");
  EXPECT_EQ(Shown(s.Feed("\nb")), "a|");
  EXPECT_EQ(Shown(s.Feed("\r")), "");
  EXPECT_EQ(Shown(s.Feed("c\n")), "b<c|");
}

TEST(LineSplitterTest, PartialLinesAreGivenOnDemand) {
  LineSplitter s;
  EXPECT_FALSE(s.TakePartial().has_value());
  s.Feed("name? ");
  EXPECT_EQ(Shown({*s.TakePartial()}), "name? ~");
  EXPECT_FALSE(s.HasPartial());
  s.Feed("50%\r");
  EXPECT_EQ(Shown({*s.TakePartial()}), "50%<");
}

TEST(LineSplitterTest, HoldsNoMoreThanItsLimit) {
  LineSplitter s;
  std::vector<LinePiece> pieces = s.Feed(std::string(kMaxLineBytes, 'x'));
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text.size(), kMaxLineBytes);
  EXPECT_EQ(pieces[0].end, LineEnd::kNone);
  EXPECT_FALSE(s.HasPartial());
}

LinePiece Line(std::string text) {
  return {.text = std::move(text), .end = LineEnd::kNewline};
}

TEST(TailTest, KeepsTheLastLinesAndTheUnfinishedOne) {
  Tail tail;
  EXPECT_TRUE(tail.empty());
  for (size_t i = 0; i < kTailLines + 5; ++i) {
    tail.Add(Line(std::to_string(i)), Time());
  }
  tail.Add({.text = "end", .end = LineEnd::kNone}, Time());
  std::vector<std::string> lines = tail.Lines();
  ASSERT_EQ(lines.size(), kTailLines + 1);
  EXPECT_EQ(lines.front(), "5");
  EXPECT_EQ(lines.back(), "end");
}

TEST(TailTest, ProgressBarsOverwriteThemselves) {
  Tail tail;
  tail.Add({.text = "10%", .end = LineEnd::kReturn}, Time());
  tail.Add({.text = "20%", .end = LineEnd::kReturn}, Time());
  tail.Add(Line("30%"), Time());
  EXPECT_EQ(tail.Lines(), std::vector<std::string>{"30%"});
}

TEST(TailTest, KnowsWhenTheLastTracebackBegan) {
  Tail tail;
  Time start{};
  tail.Add(Line("all well"), start);
  EXPECT_FALSE(tail.last_traceback().has_value());
  tail.Add(Line("Traceback (most recent call last):"), start + seconds(1));
  tail.Add(Line("Traceback (most recent call last):"), start + seconds(2));
  tail.Add(Line("ValueError: no"), start + seconds(3));
  EXPECT_EQ(tail.last_traceback(), start + seconds(2));
}

TEST(TailTest, KnowsMaypolesOwnErrorSinceTheLastTraceback) {
  Tail tail;
  tail.Add(Line("Traceback (most recent call last):"), Time());
  tail.Add(Line("maypole.common.exceptions.HorovodInternalError: rank 1 died"),
           Time());
  EXPECT_TRUE(tail.maypole_error());
  tail.Add(Line("Traceback (most recent call last):"), Time());
  EXPECT_FALSE(tail.maypole_error());
  tail.Add(Line("ValueError: bad batch"), Time());
  EXPECT_FALSE(tail.maypole_error());
}

constexpr char kBegin[] = "Traceback (most recent call last):";
constexpr char kLost[] =
    "maypole.common.exceptions.HorovodInternalError: rank 1 died";
constexpr char kCause[] =
    "The above exception was the direct cause of the following exception:";

Tail TailOf(const std::vector<std::string>& lines) {
  Tail tail;
  Time now{};
  for (const std::string& line : lines) tail.Add(Line(line), now += seconds(1));
  return tail;
}

TEST(TailTest, AChainOfExceptionsIsAsItsFirst) {
  Tail tail = TailOf({"x", kBegin, kLost, "", kCause, "", kBegin,
                      "RuntimeError: training failed"});
  EXPECT_TRUE(tail.maypole_error());
  EXPECT_EQ(tail.last_traceback(), Time() + seconds(2));
  EXPECT_EQ(tail.telling_lines(), 7u);

  tail =
      TailOf({kBegin, "ValueError: bad batch", "", kCause, "", kBegin, kLost});
  EXPECT_FALSE(tail.maypole_error());
  // A new traceback after the chain does not belong to it.
  tail.Add(Line(kBegin), Time());
  tail.Add(Line(kLost), Time());
  EXPECT_TRUE(tail.maypole_error());
}

TEST(TailTest, TellingLines) {
  EXPECT_EQ(TailOf({"a", "b"}).telling_lines(), 2u);
  EXPECT_EQ(TailOf(std::vector<std::string>(50, "a")).telling_lines(),
            kTellingLines);
  EXPECT_EQ(TailOf({"a", kBegin, "b", kBegin, "c", "d"}).telling_lines(), 3u);
}

TEST(TailTest, LongLinesAreCut) {
  Tail tail;
  tail.Add(Line(std::string(kTailLineBytes + 1, 'x')), Time());
  EXPECT_EQ(tail.Lines()[0].size(), kTailLineBytes);
}

}  // namespace
}  // namespace maypole::launcher
