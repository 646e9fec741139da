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
  const std::string token = access_.MakeToken(seconds(0), Right::kLook);
  EXPECT_EQ(access_.RightOf(seconds(1), token), Right::kNone);
  EXPECT_EQ(access_.Redeem(seconds(1), "other"), std::nullopt);
  EXPECT_EQ(access_.Redeem(seconds(1), ""), std::nullopt);
  const auto key = access_.Redeem(seconds(1), token);
  ASSERT_TRUE(key);
  EXPECT_EQ(access_.Redeem(seconds(1), token), std::nullopt);
  EXPECT_EQ(access_.RightOf(seconds(2), *key), Right::kLook);
  EXPECT_EQ(access_.RightOf(seconds(2), ""), Right::kNone);
}

TEST_F(AccessTest, ASessionHasTheRightOfItsToken) {
  const std::string look = access_.MakeToken(seconds(0), Right::kLook);
  const std::string control = access_.MakeToken(seconds(0), Right::kControl);
  const auto controls = access_.Redeem(seconds(1), control);
  const auto looks = access_.Redeem(seconds(1), look);
  ASSERT_TRUE(controls && looks);
  EXPECT_EQ(access_.RightOf(seconds(2), *controls), Right::kControl);
  EXPECT_EQ(access_.RightOf(seconds(2), *looks), Right::kLook);
}

TEST_F(AccessTest, BothEnd) {
  const std::string token = access_.MakeToken(seconds(0), Right::kLook);
  const std::string late = access_.MakeToken(seconds(0), Right::kLook);
  EXPECT_EQ(access_.Redeem(kTokenTime, late), std::nullopt);
  const auto key = access_.Redeem(kTokenTime - seconds(1), token);
  ASSERT_TRUE(key);
  const Time end = kTokenTime - seconds(1) + kSessionTime;
  EXPECT_EQ(access_.RightOf(end - seconds(1), *key), Right::kLook);
  EXPECT_EQ(access_.RightOf(end, *key), Right::kNone);
}

TEST_F(AccessTest, TheOldestMakePlace) {
  const std::string first = access_.MakeToken(seconds(0), Right::kLook);
  std::string last;
  for (size_t i = 0; i < kMaxTokens; ++i)
    last = access_.MakeToken(seconds(0), Right::kLook);
  EXPECT_EQ(access_.Redeem(seconds(0), first), std::nullopt);
  const auto key = access_.Redeem(seconds(0), last);
  ASSERT_TRUE(key);
  for (size_t i = 0; i < kMaxDashboardSessions; ++i) {
    EXPECT_EQ(access_.RightOf(seconds(0), *key), Right::kLook);
    access_.Redeem(seconds(0), access_.MakeToken(seconds(0), Right::kLook));
  }
  EXPECT_EQ(access_.RightOf(seconds(0), *key), Right::kNone);
}

}  // namespace
}  // namespace maypole::coordinator
