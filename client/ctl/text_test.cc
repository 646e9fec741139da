#include "client/ctl/text.h"

#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"

namespace maypole::ctl {
namespace {

TEST(TextTest, AmountsHaveTwoOrThreeDigits) {
  EXPECT_EQ(Amount(0), "0");
  EXPECT_EQ(Amount(0.254), "0.25");
  EXPECT_EQ(Amount(9.996), "10.0");
  EXPECT_EQ(Amount(130.4), "130");
  EXPECT_EQ(Amount(999.4), "999");
  EXPECT_EQ(Amount(999.6), "1.00k");
  EXPECT_EQ(Amount(45.67e6), "45.7M");
  EXPECT_EQ(Amount(2e21), "2000E");
}

TEST(TextTest, FoldsRanks) {
  EXPECT_EQ(Fold({}), "");
  EXPECT_EQ(Fold({7}), "7");
  EXPECT_EQ(Fold({3, 2, 1, 0}), "0-3");
  EXPECT_EQ(Fold({0, 1, 5, 7, 8, 9}), "0-1,5,7-9");
  EXPECT_EQ(Fold({4, 4, 5}), "4-5");
}

TEST(TextTest, Durations) {
  EXPECT_EQ(Duration(-1), "0.0s");
  EXPECT_EQ(Duration(0.44), "0.4s");
  EXPECT_EQ(Duration(9.96), "9s");
  EXPECT_EQ(Duration(59.9), "59s");
  EXPECT_EQ(Duration(312), "5m12s");
  EXPECT_EQ(Duration(7980), "2h13m");
  EXPECT_EQ(Duration(3 * 86400 + 4 * 3600), "3d04h");
}

TEST(TextTest, CutsWholeCharacters) {
  EXPECT_EQ(CutEnd("abcdef", 5), "ab...");
  EXPECT_EQ(CutEnd("abcdef", 6), "abcdef");
  EXPECT_EQ(CutEnd("abcdef", 0), "abcdef");
  EXPECT_EQ(CutMiddle("abcdefghij", 7), "ab...ij");
  EXPECT_EQ(CutEnd("\u00e4\u00f6\u00fc\u00df\u00e4\u00f6", 5),
            "\u00e4\u00f6...");
  EXPECT_EQ(Width("\u00e4\u00f6"), 2u);
}

TEST(TextTest, WrapsBetweenWords) {
  EXPECT_EQ(Wrap("", 10), "\n");
  EXPECT_EQ(Wrap("one two three four", 0), "one two three four\n");
  EXPECT_EQ(Wrap("one two three four", 10), "one two\n  three\n  four\n");
  EXPECT_EQ(Wrap("a verylongwordindeed b", 8),
            "a\n  verylongwordindeed\n  b\n");
}

TEST(TextTest, ControlCharactersAreHarmless) {
  EXPECT_EQ(Printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
  EXPECT_EQ(Printable("x\xc2\x9by"), "x?y");
  EXPECT_EQ(Printable("\u00e4"), "\u00e4");
}

TEST(TableTest, LinesUp) {
  Table table({{"A"}, {"N", Table::Align::kRight}, {"B"}});
  table.Add({"x", "10", "first"});
  table.Add({"long", "7", ""});
  EXPECT_EQ(table.Text(0),
            "A      N  B\n"
            "x     10  first\n"
            "long   7\n");
}

TEST(TableTest, FitsTheTerminal) {
  Table table({{"A"}, {"B"}});
  table.Add({std::string(50, 'a'), std::string(60, 'b')});
  const std::string text = table.Text(80);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 80u);
    at = end + 1;
  }
  const std::string whole(50, 'a');
  EXPECT_NE(text.find(whole + "  bbb"), std::string::npos);
  EXPECT_NE(text.find("b...\n"), std::string::npos);
  EXPECT_NE(table.Text(40).find("aaa...aaa"), std::string::npos);
}

TEST(JsonTest, AllFieldsByNameIntegersOf64BitsAsStrings) {
  proto::Event event;
  event.set_number(uint64_t{1} << 60);
  event.set_unix_seconds(1.5);
  event.set_text("a \"b\" \\ \n");
  EXPECT_EQ(Json(event),
            "{\"number\":\"1152921504606846976\",\"unix_seconds\":1.5,"
            "\"level\":\"\",\"job\":\"\",\"kind\":\"\","
            "\"text\":\"a \\\"b\\\" \\\\ \\n\"}");
  proto::DrainReply reply;
  EXPECT_EQ(Json(reply), "{\"jobs\":[]}");
  reply.add_jobs("a");
  reply.add_jobs("b");
  EXPECT_EQ(Json(reply), "{\"jobs\":[\"a\",\"b\"]}");
}

}  // namespace
}  // namespace maypole::ctl
