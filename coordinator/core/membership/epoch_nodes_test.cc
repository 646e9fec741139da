#include "coordinator/core/membership/epoch_nodes.h"

#include "coordinator/core/testing/epoch_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

proto::CoordinatorMessage Notice(const std::string& text) {
  proto::CoordinatorMessage message;
  message.mutable_notice()->set_text(text);
  return message;
}

TEST(EpochNodesTest, NothingIsSentToANodeThatIsDisconnected) {
  EpochBed bed(2);
  bed.nodes.SendAll(Notice("a"));
  EXPECT_EQ(bed.Take().size(), 2u);
  EXPECT_TRUE(bed.nodes.AllConnected());
  EXPECT_EQ(bed.nodes.IndexOf(101), 1u);
  bed.nodes.Disconnect(1);
  bed.nodes.Send(1, Notice("b"));
  bed.nodes.SendUncounted(1, Notice("c"));
  EXPECT_THAT(bed.Take(), IsEmpty());
  EXPECT_FALSE(bed.nodes.AllConnected());
  EXPECT_EQ(bed.nodes.IndexOf(101), std::nullopt);
  EXPECT_THAT(bed.nodes.sent(), ElementsAre(1, 1));
}

TEST(EpochNodesTest, SomeMessagesAreNotCounted) {
  EpochBed bed(2);
  bed.nodes.SendUncounted(0, Notice("a"));
  EXPECT_EQ(bed.Take().size(), 1u);
  EXPECT_THAT(bed.nodes.sent(), ElementsAre(0, 0));
}

TEST(EpochNodesTest, AReplyToAllIsADecision) {
  EpochBed bed(2);
  bed.nodes.SetLastDecision(7);
  const auto join = &proto::CoordinatorMessage::mutable_join_reply;
  bed.nodes.SendReply(1, proto::JoinReply(), join);
  auto sent = bed.Take();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, 1u);
  EXPECT_EQ(sent[0].second.epoch(), 5u);
  EXPECT_EQ(sent[0].second.join_reply().decision(), 0u);
  bed.nodes.SendReply(std::nullopt, proto::JoinReply(), join);
  sent = bed.Take();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].second.join_reply().decision(), 8u);
  EXPECT_EQ(bed.nodes.last_decision(), 8u);
}

TEST(EpochNodesTest, LogsNameTheJobAndTheEpoch) {
  EpochBed bed(1);
  bed.nodes.Warn("x", " rank=", 3);
  EXPECT_THAT(bed.TakeLog(), ElementsAre("event=x job=j epoch=5 rank=3"));
  EXPECT_EQ(bed.nodes.RankText(1), "rank 1 (node n0)");
  EXPECT_EQ(bed.nodes.RankText(9), "rank 9");
}

}  // namespace
}  // namespace maypole::coordinator
