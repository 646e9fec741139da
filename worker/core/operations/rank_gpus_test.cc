// Ranks that call NCCL themselves: local process sets, and those of two nodes.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/board/gpu_place.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

constexpr uint32_t kNccl = 22809;

class RankGpusTest : public ExecutorCoreTest {
 protected:
  RankGpusTest() : ExecutorCoreTest(kMaxSlots, kNccl) {}

  session::GpuMemoryReply Announce(uint32_t local, uint8_t gpu,
                                   uint32_t number = 1, uint32_t nccl = kNccl) {
    auto request = session::Make<session::GpuMemoryRequest>();
    request.number = number;
    request.sharing = static_cast<uint32_t>(session::GpuSharing::kOwn);
    request.uuid[0] = gpu;
    request.nccl_version = nccl;
    core_.OnGpuMemoryRequest(1 + local, request);
    return Reply<session::GpuMemoryReply>();
  }
  ReadySlot On(uint32_t slot, uint32_t generation, uint32_t gpu0,
               uint32_t gpu1) {
    ReadySlot ready = Ready(slot, generation, Kind::kAllreduce, 1000, 1000);
    ready.gpu_places = {PackGpuPlace({1, gpu0, 0}), PackGpuPlace({1, gpu1, 0})};
    ready.gpu_rooms = {0, 0};
    return ready;
  }
  // An allgather of rows of 4 bytes; with splits an alltoall of two ranks.
  ReadySlot Gather(uint32_t slot, uint32_t generation, int64_t rows0,
                   int64_t rows1, std::vector<uint64_t> rooms,
                   std::vector<int64_t> splits = {}) {
    ReadySlot ready = Ready(slot, generation,
                            splits.empty() ? Kind::kAllgather : Kind::kAlltoall,
                            rows0, rows1);
    ready.gpu_places = {PackGpuPlace({1, 0, 0}), PackGpuPlace({1, 1, 0})};
    ready.gpu_rooms = std::move(rooms);
    ready.splits = std::move(splits);
    return ready;
  }
  // Of the global set, with two ranks of another node.
  void AnnounceCommunicator() {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_communicator()->set_number(4);
    m.mutable_communicator()->set_size(4);
    m.mutable_communicator()->add_gpus(0);
    m.mutable_communicator()->add_gpus(1);
    m.mutable_communicator()->set_ranks_call_nccl(true);
    core_.OnCoordinator(m);
  }
  // The coordinator's run of an allgather 'x' on that communicator.
  void ExecuteGather(const std::vector<int64_t>& first_dims) {
    proto::CoordinatorMessage execute;
    proto::Run* run = AddRun(&execute, 1);
    AddOperation(run, 1, "x", Kind::kAllgather, 1);
    run->set_communicator(4);
    run->mutable_first_dims()->Assign(first_dims.begin(), first_dims.end());
    core_.OnCoordinator(execute);
  }
  void StartTwo() {
    Join(4);
    core_.OnCoordinator(StartMessage(1, 2));
    core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_endpoints()->add_addresses("");
    m.mutable_endpoints()->add_addresses("b");
    m.mutable_endpoints()->set_nccl_version(kNccl);
    core_.OnCoordinator(m);
    core_.OnBackendConnected(absl::OkStatus());
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
  }
  std::string AbortText() {
    const auto aborts = Take<AbortBoard>();
    return aborts.size() == 1 ? aborts[0].text : "";
  }
  // Each client's message, by the client.
  std::map<ClientId, session::ConnectGpu> Connects() {
    std::map<ClientId, session::ConnectGpu> out;
    for (const ReplyClient& r : Take<ReplyClient>()) {
      out[r.client] = std::get<session::ConnectGpu>(r.reply);
    }
    return out;
  }
};

TEST_F(RankGpusTest, GpusHaveNumbersByTheirUuid) {
  StartOneNode();
  EXPECT_EQ(Announce(0, 7).gpu, 0u);
  EXPECT_EQ(Announce(1, 9).gpu, 1u);
  EXPECT_EQ(Announce(1, 7, 2).gpu, 0u);
  EXPECT_TRUE(Take<OpenGpuMemory>().empty());  // no GPU is touched
}

TEST_F(RankGpusTest, AnotherNcclIsRefusedWithBothVersions) {
  StartOneNode();
  const auto reply = Announce(0, 7, 1, 22005);
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kFailedPrecondition));
  EXPECT_NE(std::string(reply.text)
                .find("rank 0 has NCCL 2.20.5, the executors have NCCL 2.28.9"),
            std::string::npos)
      << reply.text;
}

TEST_F(RankGpusTest, ARunOfOneNodeIsARunOfItsRanks) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  const uint32_t slot = Slot("x").slot;
  Slot("x", Kind::kAllreduce, 0, 2);
  core_.OnReadySlot(On(slot, 1, 0, 1));
  auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  const uint32_t number = std::get<MakeCommunicatorId>(actions[0]).number;
  const RunSpec run = std::get<IssueRun>(actions[1]).run;
  EXPECT_EQ(run.site, RunSite::kRanks);
  EXPECT_EQ(run.communicator, number);
  EXPECT_EQ(run.members, 3u);
  ASSERT_EQ(run.operations.size(), 1u);
  EXPECT_EQ(run.operations[0].slot, slot);
  EXPECT_EQ(run.operations[0].generation, 1u);
  // The id comes later than the run's ticket.
  core_.OnCommunicatorIdMade(number, std::string("id"));
  const auto connects = Connects();
  ASSERT_EQ(connects.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const session::ConnectGpu& c = connects.at(1 + i);
    EXPECT_EQ(c.number, number);
    EXPECT_EQ(c.size, 2u);
    EXPECT_EQ(c.rank, i);
    EXPECT_EQ(c.gpu, i);
    EXPECT_EQ(std::string(c.id, c.id_bytes), "id");
  }
  core_.OnRunFree(run.record);
  core_.OnReadySlot(On(slot, 2, 0, 1));
  actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<IssueRun>(actions[0]).run.communicator, number);
}

// The ranks see each other's sizes; the board of one node has no matrices.
TEST_F(RankGpusTest, ThePlanOfOneNodeHasNoSizes) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  uint32_t slot = Slot("x", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(slot, 1, 3, 2, {20, 24}));
  auto issued = Take<IssueRun>();
  slot = Slot("y", Kind::kAlltoall, 0, 2).slot;
  core_.OnReadySlot(Gather(slot, 1, 3, 5, {16, 16}, {0, 3, 4, 1}));
  for (const IssueRun& i : Take<IssueRun>()) issued.push_back(i);
  ASSERT_EQ(issued.size(), 2u);
  for (const IssueRun& i : issued) {
    EXPECT_EQ(i.run.site, RunSite::kRanks);
    EXPECT_TRUE(i.run.first_dims.empty() && i.run.splits.empty());
  }
}

TEST_F(RankGpusTest, AResultWithoutRoomIsGatheredOnTheHost) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  const uint32_t slot = Slot("x", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(slot, 1, 3, 2, {20, 19}));
  EXPECT_EQ(Take<RunOnHost>().at(0).generation, 1u);
  core_.OnReadySlot(Gather(slot, 2, 0, 0, {20, 20}));  // there is nothing
  EXPECT_EQ(Take<RunOnHost>().at(0).generation, 2u);
}

TEST_F(RankGpusTest, AForgedRoomEndsTheEpoch) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  const uint32_t slot = Slot("x", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(slot, 1, 3, 2, {20, kMaxGpuMemoryBytes + 1}));
  EXPECT_NE(AbortText().find("rank 1 has submitted allgather 'x'"),
            std::string::npos);
}

TEST_F(RankGpusTest, ThePlanOfTwoNodesHasTheCoordinatorsSizes) {
  StartTwo();
  Announce(0, 7);
  Announce(1, 9);
  const uint32_t slot = Slot("x", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(slot, 1, 3, 2, {48, 100}));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::PresentOperation& op = sent[0].presence().operations(0);
  EXPECT_TRUE(op.ranks_call_nccl());
  EXPECT_EQ(std::vector<uint64_t>(op.gpu_rooms().begin(), op.gpu_rooms().end()),
            (std::vector<uint64_t>{48, 100}));
  AnnounceCommunicator();
  Drop();
  ExecuteGather({3, 2, 7, 0});
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.site, RunSite::kRanks);
  EXPECT_EQ(issued[0].run.first_dims, (std::vector<int64_t>{3, 2, 7, 0}));
}

TEST_F(RankGpusTest, ACoordinatorsRunWithoutRoomIsRefused) {
  StartTwo();
  Announce(0, 7);
  Announce(1, 9);
  core_.OnReadySlot(
      Gather(Slot("x", Kind::kAllgather).slot, 1, 3, 2, {48, 100}));
  AnnounceCommunicator();
  Drop();
  ExecuteGather({3, 2, 7, 1});
  EXPECT_NE(AbortText().find("its result has no room"), std::string::npos);
}

TEST_F(RankGpusTest, ARankOnAnotherGpuGetsAnotherCommunicator) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  Announce(1, 11, 2);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(On(slot, 1, 0, 1));
  const uint32_t first = Take<MakeCommunicatorId>().at(0).number;
  ReadySlot moved = On(slot, 2, 0, 2);
  moved.gpu_places[1] = PackGpuPlace({2, 2, 0});
  core_.OnReadySlot(moved);
  EXPECT_EQ(Take<MakeCommunicatorId>().at(0).number, first + 1);
}

TEST_F(RankGpusTest, WhatDoesNotGoTogetherRunsOnTheHost) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 7);  // the same GPU
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(On(slot, 1, 0, 0));
  EXPECT_EQ(Take<RunOnHost>().at(0).generation, 1u);

  auto request = session::Make<session::GpuMemoryRequest>();
  request.number = 2;
  request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
  request.bytes = 1 << 20;
  core_.OnGpuMemoryRequest(2, request);
  core_.OnGpuMemoryOpened({1, 2}, OpenedGpuMemory{.gpu = 5});
  Drop();
  ReadySlot mixed = On(slot, 2, 0, 5);
  mixed.gpu_places[1] = PackGpuPlace({2, 5, 256});
  core_.OnReadySlot(mixed);
  EXPECT_EQ(Take<RunOnHost>().at(0).generation, 2u);
}

TEST_F(RankGpusTest, AForgedOffsetEndsTheEpoch) {
  StartOneNode();
  Announce(0, 7);
  Announce(1, 9);
  ReadySlot ready = On(Slot("x").slot, 1, 0, 1);
  ready.gpu_places[0] = PackGpuPlace({1, 0, 256});
  core_.OnReadySlot(ready);
  EXPECT_NE(AbortText().find("rank 0 has submitted allreduce 'x'"),
            std::string::npos);
}

TEST_F(RankGpusTest, TheCoordinatorsRunOfRanksOfTwoNodes) {
  StartTwo();
  Announce(0, 7);
  Announce(1, 9);
  const uint32_t slot = Slot("x").slot;
  Slot("x", Kind::kAllreduce, 0, 2);
  core_.OnReadySlot(On(slot, 1, 0, 1));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::PresentOperation& op = sent[0].presence().operations(0);
  EXPECT_TRUE(op.ranks_call_nccl());
  EXPECT_EQ(std::vector<uint32_t>(op.gpus().begin(), op.gpus().end()),
            (std::vector<uint32_t>{0, 1}));
  AnnounceCommunicator();
  EXPECT_EQ(Take<MakeCommunicatorId>().at(0).number, 4u);
  proto::CoordinatorMessage execute;
  proto::Run* run = AddRun(&execute, 1);
  AddOperation(run, 1, "x", Kind::kAllreduce, 1);
  run->set_communicator(4);
  core_.OnCoordinator(execute);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.site, RunSite::kRanks);
  EXPECT_EQ(issued[0].run.communicator, 4u);
  proto::CoordinatorMessage id;
  id.set_epoch(1);
  id.mutable_communicator_id()->set_number(4);
  id.mutable_communicator_id()->set_id("id");
  core_.OnCoordinator(id);
  const auto connects = Connects();
  ASSERT_EQ(connects.size(), 2u);
  EXPECT_EQ(connects.at(1).size, 4u);
  EXPECT_EQ(connects.at(2).rank, 1u);
}

TEST_F(RankGpusTest, ARunOfOthersTensorsIsRefused) {
  StartTwo();
  Announce(0, 7);
  Announce(1, 9);
  core_.OnReadySlot(On(Slot("x").slot, 1, 0, 1));
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_communicator()->set_number(4);
  m.mutable_communicator()->set_size(4);
  m.mutable_communicator()->set_first(2);
  m.mutable_communicator()->add_gpus(1);  // in another order
  m.mutable_communicator()->add_gpus(0);
  m.mutable_communicator()->set_ranks_call_nccl(true);
  core_.OnCoordinator(m);
  EXPECT_TRUE(Take<MakeCommunicatorId>().empty());
  proto::CoordinatorMessage execute;
  proto::Run* run = AddRun(&execute, 1);
  AddOperation(run, 1, "x", Kind::kAllreduce, 1);
  run->set_communicator(4);
  core_.OnCoordinator(execute);
  EXPECT_NE(AbortText().find("do not belong to communicator 4"),
            std::string::npos);
}

}  // namespace
}  // namespace maypole::worker
