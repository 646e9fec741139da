// Relays from one executor's point of view.
#include "worker/core/relays.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

using Nodes = std::vector<uint32_t>;

TEST(NodeTreeTest, EachNodeHasOneParentAndFewChildren) {
  for (const uint32_t nodes : {1u, 2u, 33u, 34u, 1024u}) {
    std::vector<uint32_t> parents(nodes, nodes);
    for (uint32_t i = 0; i < nodes; ++i) {
      const NodeTree tree(i, nodes, 32);
      EXPECT_LE(tree.children.size(), 32u);
      for (const uint32_t child : tree.children) {
        EXPECT_EQ(parents[child], nodes) << "another parent of " << child;
        parents[child] = i;
      }
    }
    for (uint32_t i = 0; i < nodes; ++i) {
      const auto parent = NodeTree(i, nodes, 32).parent;
      EXPECT_EQ(parents[i], i == 0 ? nodes : *parent);
    }
  }
}

// Node `self` of four, in a tree with two children each: 0 has 1 and 2, 1 has
// 3.
class RelaysTest : public ExecutorCoreTest {
 protected:
  void Start(uint32_t self, uint32_t fan_out = 2) {
    Connect(self, fan_out);
    core_.OnBoardCreated(absl::OkStatus());
  }
  // Brings the core to the point where the board is being created.
  void Connect(uint32_t self, uint32_t fan_out = 2) {
    const int first = static_cast<int>(2 * self);
    core_.OnClient(1, MakeHello(first, 8, 0, 2), 1000);
    core_.OnClient(2, MakeHello(first + 1, 8, 1, 2), 1001);
    proto::CoordinatorMessage start = StartMessage(1, 4);
    start.mutable_epoch_start()->set_node_index(self);
    start.mutable_epoch_start()->set_relay_fan_out(fan_out);
    core_.OnCoordinator(start);
    core_.OnBackendPrepared(std::vector<std::string>(4, "a"));
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    for (int i = 0; i < 4; ++i) m.mutable_endpoints()->add_addresses("b");
    core_.OnCoordinator(m);
    core_.OnBackendConnected(absl::OkStatus());
    Drop();
  }
  void BelowReady(uint32_t child) {
    proto::PeerMessage m;
    m.set_below_ready(true);
    core_.OnPeerMessage(child, m);
  }
  static proto::Relayed Relayed(uint64_t epoch = 1) {
    proto::CoordinatorMessage inner;
    inner.set_epoch(1);
    inner.mutable_notice()->set_text("for all");
    inner.set_settled(9);
    proto::Relayed relayed;
    relayed.set_epoch(epoch);
    relayed.set_incarnation("one");
    relayed.set_message(inner.SerializeAsString());
    for (const uint64_t n : {10, 11, 12, 0}) relayed.add_sequences(n);
    for (const uint64_t n : {20, 21, 22, 0}) relayed.add_acknowledged(n);
    return relayed;
  }
  // The nodes to which the message was passed on, and what this node has taken
  // from it.
  struct Done {
    Nodes to;
    std::vector<TakeRelayed> taken;
  };
  Done TakeDone() {
    Done done;
    for (Action& a : core_.TakeActions()) {
      if (auto* send = std::get_if<SendToPeers>(&a)) {
        EXPECT_EQ(send->message.relayed().SerializeAsString(),
                  Relayed().SerializeAsString());
        done.to = send->nodes;
      } else if (auto* take = std::get_if<TakeRelayed>(&a)) {
        done.taken.push_back(std::move(*take));
      }
    }
    return done;
  }
};

TEST_F(RelaysTest, TheFirstNodeTellsTheCoordinatorWhenAllCanBeReached) {
  Start(0);
  EXPECT_TRUE(TakeSent().empty());
  BelowReady(2);
  EXPECT_TRUE(TakeSent().empty());
  BelowReady(1);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].epoch(), 1u);
  BelowReady(1);
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(RelaysTest, ANodeBelowMayBeReadyFirst) {
  Connect(0);
  BelowReady(1);
  BelowReady(2);
  EXPECT_TRUE(TakeSent().empty());
  core_.OnBoardCreated(absl::OkStatus());
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].has_relays_ready());
}

TEST_F(RelaysTest, AnotherNodeTellsItsParent) {
  Start(1);
  EXPECT_TRUE(Take<SendToPeers>().empty());
  BelowReady(3);
  const auto sent = Take<SendToPeers>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].nodes, Nodes{0});
  EXPECT_TRUE(sent[0].message.below_ready());
}

TEST_F(RelaysTest, ALeafTellsItsParentAtOnce) {
  Start(3);
  const auto sent = Take<SendToPeers>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].nodes, Nodes{1});
}

TEST_F(RelaysTest, WithoutAFanOutThereIsNothingToPassOn) {
  Start(0, /*fan_out=*/0);
  for (const uint32_t child : {1, 2, 3}) BelowReady(child);
  EXPECT_TRUE(TakeSent().empty());
  proto::CoordinatorMessage m;
  *m.mutable_relayed() = Relayed();
  core_.OnCoordinator(m);
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RelaysTest, EachTakesItsOwnNumbersAndPassesAllOn) {
  Start(0);
  proto::CoordinatorMessage m;
  *m.mutable_relayed() = Relayed();
  core_.OnCoordinator(m);
  const Done done = TakeDone();
  EXPECT_EQ(done.to, (Nodes{1, 2}));
  ASSERT_EQ(done.taken.size(), 1u);
  EXPECT_EQ(done.taken[0].incarnation, "one");
  EXPECT_EQ(done.taken[0].message.sequence(), 10u);
  EXPECT_EQ(done.taken[0].message.acknowledged(), 20u);
  EXPECT_EQ(done.taken[0].message.settled(), 9u);
  EXPECT_EQ(done.taken[0].message.notice().text(), "for all");
}

TEST_F(RelaysTest, ANodeBelowGetsItFromItsParent) {
  Start(1);
  Drop();
  proto::PeerMessage m;
  *m.mutable_relayed() = Relayed();
  core_.OnPeerMessage(0, m);
  const Done done = TakeDone();
  EXPECT_EQ(done.to, Nodes{3});
  ASSERT_EQ(done.taken.size(), 1u);
  EXPECT_EQ(done.taken[0].message.sequence(), 11u);
}

TEST_F(RelaysTest, WhatIsNotForThisNodeIsOnlyPassedOn) {
  Start(3);
  Drop();
  proto::PeerMessage m;
  *m.mutable_relayed() = Relayed();
  core_.OnPeerMessage(1, m);
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RelaysTest, WhatIsLateIsDropped) {
  Start(0);
  Drop();
  proto::CoordinatorMessage m;
  *m.mutable_relayed() = Relayed(/*epoch=*/7);
  core_.OnCoordinator(m);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnCoordinator(EndMessage(1, "over"));
  Drop();
  *m.mutable_relayed() = Relayed();
  core_.OnCoordinator(m);
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(RelaysTest, AnotherCoordinatorIsTold) {
  Start(0);
  BelowReady(1);
  BelowReady(2);
  Drop();
  core_.OnCoordinatorReplaced();
  Drop();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_recovered();
  core_.OnCoordinator(m);
  bool told = false;
  for (const auto& sent : TakeSent()) told = told || sent.has_relays_ready();
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace maypole::worker
