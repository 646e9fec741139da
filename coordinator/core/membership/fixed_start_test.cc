#include "coordinator/core/membership/fixed_start.h"

#include <string>
#include <utility>
#include <vector>

#include "common/wire/versions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Time kTimeout = std::chrono::seconds(120);

// Nodes n1, n2, ... have sessions 1, 2, ...
class FixedStartTest : public ::testing::Test {
 protected:
  FixedStartTest() {
    for (SessionId i = 1; i <= 3; ++i) {
      nodes_.Add({.session = i,
                  .node = absl::StrCat("n", i),
                  .host = "h",
                  .versions = kProtocolVersions});
    }
  }
  NodeMember Member(SessionId session, std::vector<uint32_t> ranks) {
    NodeMember member = nodes_[session];
    member.ranks = std::move(ranks);
    member.local_size = static_cast<uint32_t>(member.ranks.size());
    member.chunk_bytes = 4096;
    return member;
  }
  void Ready(SessionId session, std::vector<uint32_t> ranks,
             uint32_t size = 3) {
    start_.SetReady(now_, Member(session, std::move(ranks)), size);
  }
  // The sessions that were told of a failure since the last call; the text of
  // the last one.
  std::vector<SessionId> Told() {
    std::vector<SessionId> told;
    for (const auto& [session, message] : output_.messages) {
      const proto::CoordinatorMessage m = message.ToMessage();
      EXPECT_TRUE(m.has_epoch_end() && m.epoch() == 0);
      text_ = m.epoch_end().message();
      code_ = m.epoch_end().code();
      told.push_back(session);
    }
    output_.messages.clear();
    return told;
  }

  JobOutput output_;
  JobNodes nodes_{"job", &output_};
  FixedStart start_{&nodes_, kTimeout};
  Time now_ = std::chrono::seconds(1000);
  std::string text_;
  int code_ = 0;
};

TEST_F(FixedStartTest, IsCompleteWithAllRanks) {
  EXPECT_FALSE(start_.Deadline());
  Ready(2, {2});
  EXPECT_EQ(start_.Deadline(), now_ + kTimeout);
  Ready(1, {0, 1});
  ASSERT_TRUE(start_.gathering().Complete());
  const std::vector<NodeMember> members = start_.Take();
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].node, "n1");
  EXPECT_FALSE(start_.Deadline());
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(FixedStartTest, WhoComesAfterAFailureIsToldOnce) {
  Ready(1, {0});
  start_.Fail("rank 1 died", 0);
  EXPECT_THAT(Told(), ElementsAre(1));
  Ready(2, {1});
  EXPECT_THAT(Told(), ElementsAre(2));
  EXPECT_EQ(text_, "rank 1 died");
  EXPECT_EQ(nodes_.Round(2), 1u);
  EXPECT_TRUE(start_.gathering().empty());
  // A node that was told begins a new start, which the others join.
  Ready(2, {1});
  Ready(3, {2});
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(start_.gathering().members().size(), 2u);
}

TEST_F(FixedStartTest, WhoReportsAFailureKnowsIt) {
  Ready(1, {0});
  Ready(2, {1});
  start_.Fail("rank 0 ended", 1);
  EXPECT_THAT(Told(), ElementsAre(2));
  Ready(1, {0});  // begins a new start
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(FixedStartTest, RanksThatDoNotFitFailIt) {
  Ready(1, {0});
  Ready(2, {0});
  EXPECT_THAT(Told(), ElementsAre(1, 2));
  EXPECT_THAT(text_, HasSubstr("rank 0 is there twice"));
  EXPECT_FALSE(start_.Deadline());
}

TEST_F(FixedStartTest, ALateRankIsNamed) {
  Ready(1, {0});
  NodeMember some = Member(2, {1});
  some.local_size = 2;
  start_.SetWaiting(now_, some, 3);
  start_.TimeOut("");
  EXPECT_THAT(Told(), ElementsAre(1, 2));
  EXPECT_THAT(text_, HasSubstr("within 120 s: rank 2 of 3 has not called"));
  EXPECT_EQ(code_, static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  Ready(1, {0});
  start_.TimeOut("epoch 7 is still running");
  EXPECT_THAT(Told(), ElementsAre(1));
  EXPECT_THAT(text_, HasSubstr("epoch 7 is still running"));
}

TEST_F(FixedStartTest, ALostNodeFailsIt) {
  Ready(1, {0});
  Ready(2, {1});
  nodes_.Remove(2);
  start_.Lose(2, "was lost");
  EXPECT_THAT(Told(), ElementsAre(1));
  EXPECT_THAT(
      text_,
      HasSubstr("the executor of node n2 (host h) with rank 1 was lost"));
  // All that were told are gone: the next one begins a new start.
  nodes_.Remove(1);
  start_.Lose(1, "was lost");
  Ready(3, {2});
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(start_.Deadline(), now_ + kTimeout);
}

TEST_F(FixedStartTest, AStopTellsAllThatWait) {
  start_.Stop("the coordinator ends");
  EXPECT_THAT(Told(), IsEmpty());
  start_.SetWaiting(now_, Member(3, {2}), 3);
  start_.Stop("the coordinator ends");
  EXPECT_THAT(Told(), ElementsAre(3));
  start_.ForgetFailure();
  Ready(1, {0});
  EXPECT_THAT(Told(), IsEmpty());
}

}  // namespace
}  // namespace maypole::coordinator
