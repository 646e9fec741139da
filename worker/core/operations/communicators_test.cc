// Operations on several GPUs, of one node and of two.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/communicators_testing.h"

namespace maypole::worker {
namespace {

TEST_F(CommunicatorsTest, GpusOfOneNodeConnectThemselves) {
  StartOneNode();
  OpenMemories(3, 5);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(OnGpus(slot, 1, 3, 5));
  const auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  const uint32_t number = std::get<MakeCommunicatorId>(actions[0]).number;
  const GpuRun run = std::get<RunOnGpus>(actions[1]).run;
  EXPECT_EQ(run.communicator, number);
  ASSERT_EQ(run.operations.size(), 1u);
  EXPECT_EQ(GpusOf(run.operations[0].tensors), (std::vector<uint32_t>{3, 5}));
  core_.OnCommunicatorIdMade(number, std::string("id"));
  const auto connects = Take<ConnectGpus>();
  ASSERT_EQ(connects.size(), 1u);
  EXPECT_EQ(connects[0].id, "id");
  EXPECT_EQ(connects[0].communicator.number, number);
  EXPECT_EQ(connects[0].communicator.size, 2u);
  EXPECT_EQ(connects[0].communicator.first, 0u);
  EXPECT_EQ(connects[0].communicator.gpus, (std::vector<uint32_t>{3, 5}));
  core_.OnGpuRunEnded(run, absl::OkStatus());
  EXPECT_EQ(Take<CommitSlot>().size(), 1u);

  // The same GPUs use the same communicator.
  core_.OnReadySlot(OnGpus(Slot("y").slot, 1, 3, 5));
  const auto again = core_.TakeActions();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(std::get<RunOnGpus>(again[0]).run.communicator, number);
}

TEST_F(CommunicatorsTest, AnIdThatCannotBeMadeEndsTheEpoch) {
  StartOneNode();
  OpenMemories(0, 1);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 1));
  const uint32_t number = Take<MakeCommunicatorId>().at(0).number;
  core_.OnCommunicatorIdMade(number, absl::UnavailableError("no interface"));
  EXPECT_NE(AbortText().find("NCCL cannot connect the GPUs of node n0 (host "
                             "host0): no interface"),
            std::string::npos);
}

TEST_F(CommunicatorsTest, WhatNcclHasNoTypeForIsRefused) {
  StartOneNode();
  OpenMemories(0, 1);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 1, DType::kInt16));
  EXPECT_NE(AbortText().find("allreduce 'x' cannot run on GPUs"),
            std::string::npos);
}

// With nodes that require encryption.
TEST_F(CommunicatorsTest, NcclOfOneNodeOnlyIsNotOfferedToOthers) {
  ExecutorCore core({.job = "job",
                     .node = "n0",
                     .host = "hosta",
                     .nccl_version = kNccl,
                     .nccl_between_nodes = false});
  core.OnTime(0);
  core.OnClient(1, MakeHello(0, 4, 0, 2), 1000);
  core.OnClient(2, MakeHello(1, 4, 1, 2), 1001);
  core.OnCoordinator(StartMessage(1, 2));
  core.OnBackendPrepared(std::vector<std::string>{"", "a"});
  int endpoints = 0;
  for (const Action& a : core.TakeActions()) {
    const auto* const sent = std::get_if<SendToCoordinator>(&a);
    if (sent == nullptr || !sent->message.has_endpoint()) continue;
    ++endpoints;
    EXPECT_EQ(sent->message.endpoint().nccl_version(), 0u);
  }
  EXPECT_EQ(endpoints, 1);
}

TEST_F(CommunicatorsTest, TwoNodesRunInTheCoordinatorsOrder) {
  StartTwo(kNccl);
  EXPECT_EQ(endpoint_nccl_, kNccl);
  EXPECT_EQ(config_.gpu_communicators, 1u);
  OpenMemories(2, 1);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(OnGpus(slot, 1, 2, 1));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::PresentOperation& present = sent[0].presence().operations(0);
  EXPECT_EQ(std::vector<uint32_t>(present.gpus().begin(), present.gpus().end()),
            (std::vector<uint32_t>{2, 1}));

  Announce(1, 0, {1, 2});
  EXPECT_EQ(Take<MakeCommunicatorId>().at(0).number, 1u);
  core_.OnCommunicatorIdMade(1, std::string("id"));
  const auto ids = TakeSent();
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids[0].communicator_id().number(), 1u);
  EXPECT_EQ(ids[0].communicator_id().id(), "id");
  proto::CoordinatorMessage id;
  id.set_epoch(1);
  *id.mutable_communicator_id() = ids[0].communicator_id();
  core_.OnCoordinator(id);
  EXPECT_EQ(Take<ConnectGpus>().at(0).communicator.size, 4u);

  proto::CoordinatorMessage execute;
  proto::Run* run = AddRun(&execute, 1);
  AddOperation(run, 9, "x", Kind::kAllreduce, 1);
  run->set_communicator(1);
  core_.OnCoordinator(execute);
  const auto runs = Take<RunOnGpus>();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].run.communicator, 1u);
  EXPECT_EQ(runs[0].run.operations[0].slot, slot);
  EXPECT_EQ(runs[0].run.operations[0].elements, 1000u);
  core_.OnGpuRunEnded(runs[0].run, absl::OkStatus());
  EXPECT_EQ(Take<CommitSlot>().at(0).slot, slot);
  // The operation can be submitted again.
  core_.OnReadySlot(OnGpus(slot, 2, 2, 1));
  EXPECT_EQ(TakeSent().size(), 0u);  // the last report is not acknowledged
  core_.OnPresenceAcknowledged();
  EXPECT_EQ(TakeSent().at(0).presence().operations(0).id(), 9u);
}

TEST_F(CommunicatorsTest, OnlyTheFirstNodeMakesTheId) {
  StartTwo(kNccl);
  Announce(1, 2, {0});
  EXPECT_TRUE(Take<MakeCommunicatorId>().empty());
}

// Another node's tensors are not on GPUs: its report has none, so the run goes
// to the board.
TEST_F(CommunicatorsTest, ARunOnTheHostIsOneOfTheBoard) {
  StartTwo(kNccl);
  OpenMemories(0, 0);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 0));
  Drop();
  proto::CoordinatorMessage execute;
  AddOperation(AddRun(&execute, 1), 9, "x", Kind::kAllreduce, 1);
  core_.OnCoordinator(execute);
  EXPECT_EQ(Take<IssueRun>().size(), 1u);
}

TEST_F(CommunicatorsTest, WithoutNcclOnAllNodesTheGpusAreNotReported) {
  StartTwo(0);
  EXPECT_EQ(config_.gpu_communicators, 0u);
  OpenMemories(0, 0);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 0));
  EXPECT_NE(AbortText().find("cannot run on GPUs"), std::string::npos);
}

struct WrongCommunicator {
  uint32_t number, first, size;
  std::vector<uint32_t> gpus;
};
class WrongCommunicatorTest
    : public CommunicatorsTest,
      public testing::WithParamInterface<WrongCommunicator> {};

TEST_P(WrongCommunicatorTest, EndsTheEpoch) {
  StartTwo(kNccl);
  const WrongCommunicator& c = GetParam();
  Announce(c.number, c.first, c.gpus, c.size);
  EXPECT_NE(AbortText().find("communicator " + std::to_string(c.number)),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongCommunicatorTest,
    testing::Values(WrongCommunicator{0, 0, 4, {0}},
                    WrongCommunicator{kMaxCommunicators + 1, 0, 4, {0}},
                    WrongCommunicator{1, 0, 4, {}},
                    WrongCommunicator{1, 4, 4, {0}},
                    WrongCommunicator{1, 3, 4, {0, 1}},
                    WrongCommunicator{1, 0, 4, {1, 1}},
                    WrongCommunicator{1, 0, 4, {0, kMaxGpus}}));

TEST_F(CommunicatorsTest, ARunOnOtherGpusThanTheTensorsEndsTheEpoch) {
  StartTwo(kNccl);
  OpenMemories(2, 1);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 2, 1));
  Announce(1, 0, {1, 3});
  Drop();
  proto::CoordinatorMessage execute;
  proto::Run* run = AddRun(&execute, 1);
  AddOperation(run, 9, "x", Kind::kAllreduce, 1);
  run->set_communicator(1);
  core_.OnCoordinator(execute);
  EXPECT_NE(AbortText().find("it runs 'x' on communicator 1, which does not "
                             "have the GPUs of its tensors"),
            std::string::npos);
}

// The death of another node's rank or executor is known to the coordinator.
class LostNodeTest : public CommunicatorsTest {
 protected:
  void SetUp() override {
    StartTwo(kNccl);
    OpenMemories(0, 0);
    core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 0));
    Announce(1, 0, {0}, 2);
    proto::CoordinatorMessage execute;
    proto::Run* run = AddRun(&execute, 1);
    AddOperation(run, 9, "x", Kind::kAllreduce, 1);
    run->set_communicator(1);
    core_.OnCoordinator(execute);
    const GpuRun failed = Take<RunOnGpus>().at(0).run;
    core_.OnGpuRunEnded(failed, absl::UnavailableError("remote error"));
    EXPECT_EQ(AbortText(), "");
  }
};

TEST_F(LostNodeTest, TheCoordinatorNamesIt) {
  core_.OnCoordinator(EndMessage(1, "rank 3 was lost"));
  EXPECT_NE(AbortText().find("rank 3 was lost"), std::string::npos);
}

// NCCL's error ends all runs of the GPUs, even those of this node alone.
TEST_F(LostNodeTest, RunsOfThisNodeAloneWaitForTheCoordinatorToo) {
  MakeSet(1, 1, {0, 1});
  const uint32_t slot = Slot("y", Kind::kAllreduce, 1).slot;
  ReadySlot ready = OnGpus(slot, 1, 0, 0);
  for (Signature& s : ready.signatures) s.process_set = 1;
  core_.OnReadySlot(ready);
  const GpuRun run = Take<RunOnGpus>().at(0).run;
  EXPECT_EQ(run.communicator, 0u);
  core_.OnGpuRunEnded(run, absl::UnavailableError("remote error"));
  EXPECT_EQ(AbortText(), "");
}

TEST_F(LostNodeTest, WithoutTheCoordinatorNcclsErrorCounts) {
  core_.OnTime(1'000'000);
  const std::string text = AbortText();
  EXPECT_NE(text.find("'x' failed on the GPU of node n0"), std::string::npos)
      << text;
}

TEST_F(CommunicatorsTest, AnErrorOfNcclEndsTheEpoch) {
  StartOneNode();
  OpenMemories(0, 1);
  core_.OnReadySlot(OnGpus(Slot("x").slot, 1, 0, 1));
  const GpuRun run = Take<RunOnGpus>().at(0).run;
  core_.OnGpuRunEnded(run, absl::UnavailableError("remote process exited"));
  EXPECT_NE(AbortText().find("allreduce 'x' failed on the GPU of node n0"),
            std::string::npos);
}

}  // namespace
}  // namespace maypole::worker
