#include "worker/core/coordinator_link.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace maypole::worker {
namespace {

constexpr int64_t kPatienceMs = 1000;

class CoordinatorLinkTest : public testing::Test {
 protected:
  // How many actions of this kind there are since the last call of it.
  template <typename Kind>
  size_t Take() {
    size_t count = 0;
    for (const Action& a : std::exchange(actions_, {})) {
      count += std::holds_alternative<Kind>(a);
    }
    return count;
  }
  size_t Sends() {
    actions_.clear();
    link_.Send({});
    return Take<SendToCoordinator>();
  }

  std::vector<Action> actions_;
  CoordinatorLink link_{kPatienceMs, &actions_};
};

TEST_F(CoordinatorLinkTest, IsOpenedOnceAndSendsOnlyThen) {
  EXPECT_EQ(Sends(), 0u);
  EXPECT_TRUE(link_.Open());
  EXPECT_EQ(Take<OpenLink>(), 1u);
  EXPECT_FALSE(link_.Open());
  EXPECT_EQ(Take<OpenLink>(), 0u);
  EXPECT_EQ(Sends(), 1u);
  link_.OnLost();
  EXPECT_EQ(Sends(), 0u);
  EXPECT_TRUE(link_.Open());
}

TEST_F(CoordinatorLinkTest, IsQuietUntilAReplacedCoordinatorKnowsTheState) {
  link_.Open();
  EXPECT_FALSE(link_.OnRecovered());
  actions_.clear();
  link_.OnReplaced({});
  EXPECT_EQ(Take<SendToCoordinator>(), 1u);
  EXPECT_TRUE(link_.recovering());
  EXPECT_EQ(Sends(), 0u);
  EXPECT_TRUE(link_.OnRecovered());
  EXPECT_EQ(Sends(), 1u);
}

TEST_F(CoordinatorLinkTest, PatienceCountsFromTheFirstWaitWithoutACoordinator) {
  link_.Open();
  EXPECT_TRUE(link_.OnTime(0, /*wait=*/true).ok()) << "it is there";
  link_.OnAway(absl::UnavailableError("gone"));
  link_.OnAway(absl::UnavailableError("gone for another reason"));
  EXPECT_TRUE(link_.OnTime(5000, /*wait=*/false).ok()) << "nobody waits";
  EXPECT_TRUE(link_.OnTime(6000, /*wait=*/true).ok());
  EXPECT_TRUE(link_.OnTime(6000 + kPatienceMs - 1, /*wait=*/true).ok());
  actions_.clear();
  EXPECT_EQ(link_.OnTime(6000 + kPatienceMs, /*wait=*/true),
            absl::UnavailableError("gone (waited for it for 1 s)"));
  EXPECT_EQ(Take<CloseLink>(), 1u);
  EXPECT_TRUE(link_.OnTime(60000, /*wait=*/true).ok()) << "once";
  EXPECT_EQ(Sends(), 0u) << "it is closed";
}

TEST_F(CoordinatorLinkTest, AWaitThatEndsBeginsAnew) {
  link_.Open();
  link_.OnAway(absl::UnavailableError("gone"));
  EXPECT_TRUE(link_.OnTime(0, /*wait=*/true).ok());
  EXPECT_TRUE(link_.OnTime(900, /*wait=*/false).ok());
  EXPECT_TRUE(link_.OnTime(1500, /*wait=*/true).ok());
  link_.OnBack();
  EXPECT_TRUE(link_.OnTime(9000, /*wait=*/true).ok());
  EXPECT_FALSE(link_.away());
}

TEST_F(CoordinatorLinkTest, WithoutASessionNothingIsAway) {
  link_.OnAway(absl::UnavailableError("gone"));
  EXPECT_FALSE(link_.away());
}

}  // namespace
}  // namespace maypole::worker
