#include "worker/network/coordinator_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace maypole::worker {
namespace {

TEST(CoordinatorChoice, GoesRound) {
  CoordinatorChoice choice({"a:1", "b:1"});
  EXPECT_EQ(choice.address(), "a:1");
  choice.Next();
  EXPECT_EQ(choice.address(), "b:1");
  choice.Next();
  EXPECT_EQ(choice.address(), "a:1");
}

TEST(CoordinatorChoice, ALowerTermIsRefusedAndChangesNothing) {
  CoordinatorChoice choice({"a:1", "b:1"});
  EXPECT_TRUE(choice.Join(7).ok());
  EXPECT_TRUE(choice.Join(7).ok());  // the same stream, resumed
  choice.Next();
  const absl::Status status = choice.Join(6);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("b:1 has been replaced: it leads in term 6"),
            std::string::npos)
      << status;
  EXPECT_FALSE(choice.Join(0).ok());  // a coordinator without an election
  EXPECT_TRUE(choice.Join(9).ok());
  EXPECT_FALSE(choice.Join(8).ok());
}

TEST(CoordinatorChoice, TheOnlyCoordinatorMayBeJoinedAgain) {
  CoordinatorChoice choice({"a:1"});
  EXPECT_TRUE(choice.Join(0).ok());
  EXPECT_TRUE(choice.Join(0).ok());
}

TEST(CoordinatorChoice, JoinedTermsNeverDecreaseInAnyOrder) {
  std::mt19937 random(1);
  CoordinatorChoice choice({"a:1", "b:1", "c:1"});
  uint64_t joined = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t term = joined / 2 + random() % (joined / 2 + 5);
    EXPECT_EQ(choice.Join(term).ok(), term >= joined);
    joined = std::max(joined, term);
    choice.Next();
  }
  EXPECT_GT(joined, 100u);
}

}  // namespace
}  // namespace maypole::worker
