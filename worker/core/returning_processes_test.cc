#include "worker/core/returning_processes.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>
#include <vector>

namespace maypole::worker {
namespace {

class ReturningProcessesTest : public testing::Test {
 protected:
  static LocalMember Member(ClientId client, int rank, int pid) {
    LocalMember m;
    m.client = client;
    m.rank = rank;
    m.visible_pid = pid;
    return m;
  }
  std::vector<ClientId> Stopped() {
    std::vector<ClientId> out;
    for (const Action& a : std::exchange(actions_, {})) {
      if (const auto* stop = std::get_if<StopWatching>(&a)) {
        out.push_back(stop->client);
      }
    }
    return out;
  }
  using Clients = std::vector<ClientId>;

  std::vector<Action> actions_;
  ReturningProcesses processes_{&actions_};
};

TEST_F(ReturningProcessesTest, OneThatReturnsIsNoLongerWatched) {
  processes_.Add(Member(7, 2, 100), /*epoch=*/3, /*until_ms=*/5000);
  processes_.Add(Member(8, 4, 101), /*epoch=*/3, /*until_ms=*/5000);
  ASSERT_EQ(actions_.size(), 2u);
  EXPECT_EQ(std::get<KeepWatching>(actions_[0]).client, 7u);
  processes_.OnReturned(/*visible_pid=*/101);
  EXPECT_EQ(Stopped(), Clients{8});
  EXPECT_EQ(processes_.size(), 1u);
}

TEST_F(ReturningProcessesTest, TheEndOfOneThatIsExpectedIsReported) {
  processes_.Add(Member(7, 2, 100), /*epoch=*/3, /*until_ms=*/5000);
  const auto gone = processes_.OnEnded(7);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->epoch(), 3u);
  EXPECT_EQ(gone->rank_gone().rank(), 2u);
  EXPECT_FALSE(gone->rank_gone().clean());
  EXPECT_EQ(gone->rank_gone().how(), "its process has ended");
  EXPECT_FALSE(processes_.OnEnded(7)) << "once";
  EXPECT_EQ(processes_.size(), 0u);
}

TEST_F(ReturningProcessesTest, OneThatHasFinishedIsWatchedAsLongAsItLives) {
  processes_.Add(Member(7, 2, 100), /*epoch=*/3, std::nullopt);
  processes_.OnTime(1'000'000'000);
  EXPECT_EQ(processes_.size(), 1u);
  EXPECT_FALSE(processes_.OnEnded(7)) << "its training is over";
  EXPECT_EQ(processes_.size(), 0u);
}

TEST_F(ReturningProcessesTest, NobodyIsExpectedForEver) {
  processes_.Add(Member(7, 2, 100), /*epoch=*/3, /*until_ms=*/5000);
  processes_.OnTime(4999);
  EXPECT_EQ(Stopped(), Clients{});
  processes_.OnTime(5000);
  EXPECT_EQ(Stopped(), Clients{7});
  EXPECT_EQ(processes_.size(), 0u);
}

}  // namespace
}  // namespace maypole::worker
