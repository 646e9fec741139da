// Small runs of the negotiated tier: inputs travel before the order is known.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kBefore = 70;  // decision of the first run

// Node n0 of two has operation 'a' (slot 0, id 11), and it has run once.
class SmallRunsTest : public ExecutorCoreTest {
 protected:
  void SetUp() override { Start(8); }
  void Start(int64_t rows) {
    sends_inputs_ = true;
    StartTwoNodes();
    Slot("a");
    Submit(1, rows);
    Run(1, /*inputs_sent=*/false);
  }
  struct Sent {
    std::vector<SendToPeers> to_peers;
    std::vector<proto::PresentOperation> reports;
  };
  Sent Submit(uint32_t generation, int64_t rows = 8, bool copied = true,
              Kind kind = Kind::kAllreduce) {
    ReadySlot ready = Ready(0, generation, kind, rows, rows);
    ready.copied = copied;
    core_.OnReadySlot(ready);
    Sent out;
    for (Action& a : core_.TakeActions()) {
      if (auto* p = std::get_if<SendToPeers>(&a)) out.to_peers.push_back(*p);
      auto* c = std::get_if<SendToCoordinator>(&a);
      if (c == nullptr) continue;
      EXPECT_EQ(c->message.presence().operations_size(), 1);
      out.reports.push_back(c->message.presence().operations(0));
    }
    core_.OnPresenceAcknowledged();
    return out;
  }
  proto::CoordinatorMessage RunMessage(uint32_t generation, bool inputs_sent,
                                       uint32_t id = 11) {
    proto::CoordinatorMessage m;
    proto::Run* run = AddRun(&m, ++runs_);
    AddOperation(run, id, "a", Kind::kAllreduce, generation);
    run->set_decision(kBefore - 1 + runs_);
    run->set_inputs_sent(inputs_sent);
    return m;
  }
  // What has happened since the last call, and by this run.
  struct Done {
    std::vector<FinishSmall> small;
    std::vector<RunSpec> runs;
    std::vector<WantCopies> wanted;
    std::vector<std::string> aborts;
  };
  Done TakeDone() {
    Done done;
    for (Action& a : core_.TakeActions()) {
      if (auto* f = std::get_if<FinishSmall>(&a)) done.small.push_back(*f);
      if (auto* r = std::get_if<IssueRun>(&a)) done.runs.push_back(r->run);
      if (auto* w = std::get_if<WantCopies>(&a)) done.wanted.push_back(*w);
      if (auto* e = std::get_if<AbortBoard>(&a)) done.aborts.push_back(e->text);
    }
    return done;
  }
  Done Run(uint32_t generation, bool inputs_sent) {
    core_.OnCoordinator(RunMessage(generation, inputs_sent));
    Done done = TakeDone();
    for (const RunSpec& run : done.runs) core_.OnRunFree(run.record);
    return done;
  }
  // The other node has sent this before the run of `generation`.
  void PeerSends(uint32_t generation, uint64_t after,
                 const std::string& inputs = std::string(32, 'x'),
                 uint32_t id = 11) {
    proto::PeerMessage m;
    m.mutable_inputs_of()->set_id(id);
    m.mutable_inputs_of()->set_generation(generation);
    m.mutable_inputs_of()->set_after(after);
    m.set_inputs(inputs);
    core_.OnPeerMessage(1, m);
  }
  void Recover() {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_recovered()->set_sends_inputs(sends_inputs_);
    core_.OnCoordinator(m);
  }

  uint64_t runs_ = 0;
};

TEST_F(SmallRunsTest, InputsAreSentWithTheReport) {
  const Sent sent = Submit(2);
  ASSERT_EQ(sent.to_peers.size(), 1u);
  EXPECT_EQ(sent.to_peers[0].nodes, std::vector<uint32_t>{1});
  const proto::InputsOf& key = sent.to_peers[0].message.inputs_of();
  EXPECT_EQ(key.id(), 11u);
  EXPECT_EQ(key.generation(), 2u);
  EXPECT_EQ(key.after(), kBefore);
  ASSERT_EQ(sent.to_peers[0].operations.size(), 1u);
  EXPECT_EQ(sent.to_peers[0].operations[0].slot, 0u);
  EXPECT_EQ(sent.to_peers[0].operations[0].generation, 2u);
  ASSERT_EQ(sent.reports.size(), 1u);
  EXPECT_TRUE(sent.reports[0].as_before());
  EXPECT_TRUE(sent.reports[0].inputs_sent());
}

TEST_F(SmallRunsTest, ARunNeedsTheOrderAndTheInputs) {
  for (uint32_t g = 2; g <= 9; ++g) {
    Submit(g);
    const uint64_t after = kBefore + g - 2;
    std::vector<FinishSmall> small;
    if (g % 2 == 0) {
      PeerSends(g, after);
      EXPECT_TRUE(TakeDone().small.empty());
      small = Run(g, true).small;
    } else {
      EXPECT_TRUE(Run(g, true).small.empty());
      PeerSends(g, after);
      small = TakeDone().small;
    }
    ASSERT_EQ(small.size(), 1u) << g;
    EXPECT_EQ(small[0].operations[0].generation, g);
    EXPECT_EQ(small[0].operations[0].finish.over_nodes.divisor, 4);  // ranks
    EXPECT_EQ(small[0].self, 0u);
    EXPECT_EQ(small[0].inputs,
              (std::vector<std::string>{"", std::string(32, 'x')}));
  }
}

TEST_F(SmallRunsTest, TheOtherNodeMayBeOneOperationAhead) {
  Submit(2);
  PeerSends(2, kBefore, std::string(32, 'a'));
  PeerSends(3, kBefore + 1, std::string(32, 'b'));
  EXPECT_EQ(Run(2, true).small.at(0).inputs[1], std::string(32, 'a'));
  Submit(3);
  EXPECT_EQ(Run(3, true).small.at(0).inputs[1], std::string(32, 'b'));
}

TEST_F(SmallRunsTest, WhatARunDoesNotUseIsDropped) {
  Submit(2);
  PeerSends(2, kBefore);
  EXPECT_EQ(Run(2, false).runs.size(), 1u);
  Submit(3);
  EXPECT_EQ(Run(3, false).runs.size(), 1u);
  PeerSends(3, kBefore + 1);  // late
  Submit(4);
  EXPECT_TRUE(Run(4, true).small.empty());
  PeerSends(4, kBefore + 2);
  EXPECT_EQ(TakeDone().small.size(), 1u);
}

TEST_F(SmallRunsTest, OnlyCopiedReductionsAsBeforeAreSent) {
  EXPECT_TRUE(Submit(2, 8, /*copied=*/false).to_peers.empty());
  Run(2, false);
  const Sent other = Submit(3, 9);
  EXPECT_TRUE(other.to_peers.empty());
  EXPECT_FALSE(other.reports.at(0).inputs_sent());
  Run(3, false);
  EXPECT_EQ(Submit(4, 9).to_peers.size(), 1u);
}

TEST_F(SmallRunsTest, RanksCopyAsLongAsRunsAreSmall) {
  Submit(2, 1 << 14);  // 64 KiB
  EXPECT_TRUE(Run(2, false).wanted.empty());
  Submit(3, (1 << 14) + 1);
  std::vector<WantCopies> wanted = Run(3, false).wanted;
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_FALSE(wanted[0].wanted);
  EXPECT_TRUE(Submit(4, (1 << 14) + 1).to_peers.empty());
  EXPECT_TRUE(Run(4, false).wanted.empty());
  Submit(5);
  wanted = Run(5, false).wanted;
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_TRUE(wanted[0].wanted);
}

TEST_F(SmallRunsTest, InputsOfAnotherLengthEndTheEpoch) {
  Submit(2);
  PeerSends(2, kBefore, "x");
  const auto aborts = Run(2, true).aborts;
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_NE(aborts[0].find("1 bytes of inputs of a small run of 32"),
            std::string::npos)
      << aborts[0];
}

// Every node has received the order by the time ids are forgotten; inputs may
// come later.
TEST_F(SmallRunsTest, AnOrderedRunOutlivesItsCoordinator) {
  Submit(2);
  core_.OnCoordinatorReplaced();
  EXPECT_TRUE(Run(2, true).small.empty());
  Recover();
  PeerSends(2, kBefore);
  EXPECT_EQ(TakeDone().small.size(), 1u);
}

TEST_F(SmallRunsTest, WhatWasSentUnderAnotherCoordinatorIsNotUsed) {
  Submit(2);
  core_.OnCoordinatorReplaced();
  Recover();
  const auto sent = TakeSent();
  ASSERT_FALSE(sent.empty());
  const proto::PresentOperation& report = sent.back().presence().operations(0);
  EXPECT_EQ(report.identity().name(), "a");
  EXPECT_FALSE(report.inputs_sent());
  core_.OnPresenceAcknowledged();
  PeerSends(2, kBefore);  // by its old id
  Run(1, false);          // counted anew
  PeerSends(2, kBefore);
  EXPECT_TRUE(Submit(3).reports.at(0).inputs_sent());
  EXPECT_TRUE(Run(2, true).small.empty());
  PeerSends(2, kBefore + 1);
  EXPECT_EQ(TakeDone().small.size(), 1u);
}

TEST_F(SmallRunsTest, ARetiredNameIsReportedAgainWithoutInputs) {
  EXPECT_TRUE(Submit(2).reports.at(0).inputs_sent());
  PeerSends(2, kBefore);
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_names_retired()->add_ids(11);
  core_.OnCoordinator(m);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(sent[0].presence().operations(0).inputs_sent());
  PeerSends(2, kBefore);
  core_.OnPresenceAcknowledged();
  core_.OnCoordinator(RunMessage(1, false, 12));
  EXPECT_EQ(TakeDone().runs.size(), 1u);
  EXPECT_EQ(Submit(3).to_peers.at(0).message.inputs_of().id(), 12u);
}

TEST_F(SmallRunsTest, NothingIsSentWhileNoCoordinatorKnowsTheEpoch) {
  core_.OnCoordinatorReplaced();
  Drop();
  const Sent sent = Submit(2);
  EXPECT_TRUE(sent.to_peers.empty());
  EXPECT_TRUE(sent.reports.empty());
}

TEST_F(SmallRunsTest, ACoordinatorMayNotKnowIt) {
  core_.OnCoordinatorReplaced();
  sends_inputs_ = false;
  Recover();
  Drop();
  Submit(2);
  Run(1, false);
  const Sent sent = Submit(3);
  EXPECT_TRUE(sent.to_peers.empty());
  EXPECT_FALSE(sent.reports.at(0).inputs_sent());
}

}  // namespace
}  // namespace maypole::worker
