#include "worker/executor/become_user.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

TEST(GroupsWithin, AnswersWithTheGroups) {
  const auto groups =
      GroupsWithin(milliseconds(20000), 7, 8, [](uid_t uid, gid_t gid) {
        return std::vector<gid_t>{gid, uid + 100};
      });
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(*groups, (std::vector<gid_t>{8, 107}));
}

TEST(GroupsWithin, ADirectoryServiceThatHangsIsAnErrorThatNamesIt) {
  auto end = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  const auto groups =
      GroupsWithin(milliseconds(50), 4711, 8, [end, ended](uid_t, gid_t gid) {
        end->get_future().wait();
        ended->set_value();
        return std::vector<gid_t>{gid};
      });
  EXPECT_EQ(groups.status().code(), absl::StatusCode::kUnavailable);
  const std::string text(groups.status().message());
  EXPECT_EQ(text.find("the groups of uid 4711 could not be looked up in 0.05 "
                      "s: the node's directory service"),
            0u)
      << text;
  // The look-up may still answer; nothing waits for it any more.
  end->set_value();
  ended->get_future().wait();
}

TEST(LookUpGroups, OfAUidWithoutAnAccountJustTheGroup) {
  EXPECT_EQ(LookUpGroups(4000000001u, 12), std::vector<gid_t>{12});
}

TEST(LookUpGroups, OfRoot) {
  const std::vector<gid_t> groups = LookUpGroups(0, 0);
  ASSERT_FALSE(groups.empty());
  EXPECT_EQ(groups[0], 0u);
}

}  // namespace
}  // namespace maypole::worker
