#include "common/parse.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace maypole {
namespace {

TEST(ParseTest, WholeNumbersInARange) {
  int n = -1;
  EXPECT_TRUE(ParseNumber("0", 0, 9, &n));
  EXPECT_EQ(n, 0);
  EXPECT_TRUE(ParseNumber("007", 0, 9, &n));
  EXPECT_EQ(n, 7);
  EXPECT_TRUE(ParseNumber("-3", -3, 9, &n));
  EXPECT_EQ(n, -3);
  int64_t large = 0;
  EXPECT_TRUE(ParseNumber("9223372036854775807", &large));
  EXPECT_EQ(large, std::numeric_limits<int64_t>::max());
}

TEST(ParseTest, OthersChangeNothing) {
  int n = 5;
  for (const char* bad :
       {"", " ", "+1", " 1", "1 ", "1\n", "1x", "x1", "0x1", "1.0", "1e1", "-",
        "-1", "10", "99999999999", "--1"}) {
    EXPECT_FALSE(ParseNumber(bad, 0, 9, &n)) << bad;
    EXPECT_EQ(n, 5);
  }
}

}  // namespace
}  // namespace maypole
