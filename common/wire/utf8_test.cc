#include "common/wire/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace maypole {
namespace {

TEST(Utf8, IsWhatProtobufAccepts) {
  for (const std::string text :
       {"", "a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(ToUtf8(text), text);
  }
  // A lone byte, a cut character, a surrogate, an overlong form, too great a
  // number.
  for (const std::string text :
       {"\xff", "x\xe2\x82", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(text));
    EXPECT_TRUE(IsUtf8(ToUtf8(text)));
  }
  EXPECT_EQ(ToUtf8("a\xff\xc3\xa4"), "a\xef\xbf\xbd\xc3\xa4");
}

}  // namespace
}  // namespace maypole
