#include "common/log_value.h"

#include <gtest/gtest.h>

#include <string>

namespace maypole {
namespace {

TEST(LogValueTest, StaysOneValueOfOneLine) {
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("allreduce 'a.b'"), "\"allreduce 'a.b'\"");
  EXPECT_EQ(LogValue("a\" event=end \""), R"("a\" event=end \"")");
  EXPECT_EQ(LogValue("a\nevent=end\r"), R"("a\nevent=end\r")");
  EXPECT_EQ(LogValue("a\\\"b"), R"("a\\\"b")");
  EXPECT_EQ(LogValue(std::string("\0\x1b[2J\x7f", 6)), R"("\000\033[2J\177")");
  EXPECT_EQ(LogValue("t\xc2\x9b"
                     "31mred\xc2\x80\xc2\x9f"),
            R"("t\302\23331mred\302\200\302\237")");
  EXPECT_EQ(LogValue("\xc2\xa0\xc2"), "\"\xc2\xa0\xc2\"");
  EXPECT_EQ(LogValue("gr\xc3\xb6\xc3\x9f"
                     "e"),
            "\"gr\xc3\xb6\xc3\x9f"
            "e\"");
}

}  // namespace
}  // namespace maypole
