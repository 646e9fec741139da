#include "coordinator/dashboard/access.h"

#include <gtest/gtest.h>

namespace maypole::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class AccessTest : public ::testing::Test {
 protected:
  int made_ = 0;
  DashboardAccess access_{[this] { return "key" + std::to_string(++made_); }};
};

TEST_F(AccessTest, ATokenIsGoodForOneSession) {
  const std::string token = access_.MakeToken(seconds(0));
  EXPECT_FALSE(access_.Admits(seconds(1), token));
  EXPECT_EQ(access_.Redeem(seconds(1), "other"), std::nullopt);
  EXPECT_EQ(access_.Redeem(seconds(1), ""), std::nullopt);
  const auto key = access_.Redeem(seconds(1), token);
  ASSERT_TRUE(key);
  EXPECT_EQ(access_.Redeem(seconds(1), token), std::nullopt);
  EXPECT_TRUE(access_.Admits(seconds(2), *key));
  EXPECT_FALSE(access_.Admits(seconds(2), ""));
}

TEST_F(AccessTest, BothEnd) {
  const std::string token = access_.MakeToken(seconds(0));
  const std::string late = access_.MakeToken(seconds(0));
  EXPECT_EQ(access_.Redeem(kTokenTime, late), std::nullopt);
  const auto key = access_.Redeem(kTokenTime - seconds(1), token);
  ASSERT_TRUE(key);
  const Time end = kTokenTime - seconds(1) + kSessionTime;
  EXPECT_TRUE(access_.Admits(end - seconds(1), *key));
  EXPECT_FALSE(access_.Admits(end, *key));
}

TEST_F(AccessTest, TheOldestMakePlace) {
  const std::string first = access_.MakeToken(seconds(0));
  std::string last;
  for (size_t i = 0; i < kMaxTokens; ++i) last = access_.MakeToken(seconds(0));
  EXPECT_EQ(access_.Redeem(seconds(0), first), std::nullopt);
  const auto key = access_.Redeem(seconds(0), last);
  ASSERT_TRUE(key);
  for (size_t i = 0; i < kMaxDashboardSessions; ++i) {
    EXPECT_TRUE(access_.Admits(seconds(0), *key));
    access_.Redeem(seconds(0), access_.MakeToken(seconds(0)));
  }
  EXPECT_FALSE(access_.Admits(seconds(0), *key));
}

}  // namespace
}  // namespace maypole::coordinator
