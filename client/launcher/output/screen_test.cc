#include "client/launcher/output/screen.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

class ScreenTest : public ::testing::Test {
 protected:
  void Line(int stream, std::string text) {
    Write(stream, std::move(text), LineEnd::kNewline);
  }
  void Write(int stream, std::string text, LineEnd end) {
    screen_.Write(stream, std::to_string(stream) + ":",
                  {.text = std::move(text), .end = end});
  }
  std::string Taken() {
    std::string out = screen_.pending();
    screen_.Consume(out.size());
    return out;
  }
  Screen screen_;
};

TEST_F(ScreenTest, EveryLineHasItsPrefix) {
  Line(0, "a");
  Line(1, "b");
  Line(1, "");
  EXPECT_EQ(Taken(), "0:a\n1:b\n1:\n");
}

TEST_F(ScreenTest, AnUnfinishedLineGoesOnWithoutASecondPrefix) {
  Write(0, "name", LineEnd::kNone);
  Write(0, "? ", LineEnd::kNone);
  Line(0, "ok");
  EXPECT_EQ(Taken(), "0:name? ok\n");
}

TEST_F(ScreenTest, AnotherStreamEndsAnUnfinishedLine) {
  Write(0, "half", LineEnd::kNone);
  Line(1, "whole");
  Line(0, "rest");
  EXPECT_EQ(Taken(), "0:half\n1:whole\n0:rest\n");
}

TEST_F(ScreenTest, AProgressBarOverwritesItselfWhileAlone) {
  Write(0, "", LineEnd::kReturn);
  Write(0, "10%", LineEnd::kNone);
  Write(0, "", LineEnd::kReturn);
  Write(0, "20%", LineEnd::kReturn);
  Line(0, "30%");
  EXPECT_EQ(Taken(), "0:10%\r0:20%\r0:30%\n");
}

TEST_F(ScreenTest, AProgressBarStaysWholeWhenAnotherWrites) {
  Write(0, "10%", LineEnd::kReturn);
  Line(1, "x");
  Write(0, "20%", LineEnd::kReturn);
  EXPECT_EQ(Taken(), "0:10%\r\n1:x\n0:20%\r");
}

TEST_F(ScreenTest, EndLineEndsOnlyWhatIsOpen) {
  screen_.EndLine();
  EXPECT_EQ(Taken(), "");
  Write(0, "x", LineEnd::kNone);
  screen_.EndLine();
  screen_.EndLine();
  EXPECT_EQ(Taken(), "0:x\n");
}

TEST(LastLinesTest, KnowsWhoseLinesCameLast) {
  Screen screen;
  screen.WriteLine(1, "", "a");
  screen.WriteLine(2, "", "b");
  EXPECT_FALSE(screen.LastLinesAre(1, 1));
  screen.WriteLine(1, "", "c");
  screen.WriteLine(kOwnStream, "", "waiting");
  screen.WriteLine(1, "", "d");
  EXPECT_TRUE(screen.LastLinesAre(1, 2));
  EXPECT_FALSE(screen.LastLinesAre(1, 3));
  EXPECT_FALSE(screen.LastLinesAre(2, 1));
}

}  // namespace
}  // namespace maypole::launcher
