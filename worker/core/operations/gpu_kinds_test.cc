// Operations of all kinds on GPUs, of one node and of two.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/communicators_testing.h"

namespace maypole::worker {
namespace {

using Counts = std::vector<uint64_t>;

class GpuKindsTest : public CommunicatorsTest {
 protected:
  // Rows of 4 bytes.
  ReadySlot Gather(uint32_t slot, uint32_t generation, int64_t rows0,
                   int64_t rows1, std::vector<uint64_t> rooms) {
    ReadySlot ready = PutOnGpus(
        Ready(slot, generation, Kind::kAllgather, rows0, rows1), 2, 1);
    ready.gpu_rooms = std::move(rooms);
    return ready;
  }
  // To two ranks.
  ReadySlot Exchange(uint32_t slot, std::vector<int64_t> splits,
                     std::vector<uint64_t> rooms) {
    ReadySlot ready =
        PutOnGpus(Ready(slot, 1, Kind::kAlltoall, splits[0] + splits[1],
                        splits[2] + splits[3]),
                  2, 1);
    ready.splits = std::move(splits);
    ready.gpu_rooms = std::move(rooms);
    return ready;
  }
  GpuOperation RunAlone(const ReadySlot& ready) {
    core_.OnReadySlot(ready);
    const auto runs = Take<RunOnGpus>();
    EXPECT_EQ(runs.size(), 1u);
    return runs.empty() ? GpuOperation() : runs[0].run.operations.at(0);
  }
  void StartOne() {
    StartOneNode();
    OpenMemories(2, 1);
  }
};

TEST_F(GpuKindsTest, ABroadcastNamesItsRootAndMembers) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kBroadcast).slot;
  ReadySlot ready = PutOnGpus(Ready(slot, 1, Kind::kBroadcast, 100, 100), 2, 1,
                              DType::kInt16);  // NCCL need not reduce it
  for (Signature& s : ready.signatures) s.root = 1;
  const GpuOperation op = RunAlone(ready);
  EXPECT_EQ(op.kind, Kind::kBroadcast);
  EXPECT_EQ(op.elements, 100u);
  EXPECT_EQ(op.root, 1u);
  ASSERT_EQ(op.members.size(), 2u);
  EXPECT_EQ(op.members[0].gpu, 1u);  // GPU 2 is the second one
  EXPECT_EQ(op.members[0].tensor, 0u);
  EXPECT_EQ(op.members[1].gpu, 0u);
  EXPECT_EQ(op.members[1].tensor, 1u);
  EXPECT_EQ(op.tensors[0].result, kInPlace);
}

TEST_F(GpuKindsTest, AReducescatterCountsElements) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kReducescatter).slot;
  ReadySlot ready = PutOnGpus(Ready(slot, 1, Kind::kReducescatter, 5, 5), 2, 1);
  for (Signature& s : ready.signatures) {
    s.dims = 2;
    s.shape[1] = 3;
  }
  const GpuOperation op = RunAlone(ready);
  EXPECT_EQ(op.elements, 15u);
  EXPECT_EQ(op.counts, (Counts{9, 6}));
  EXPECT_EQ(op.tensors[1].result, kInPlace);
}

TEST_F(GpuKindsTest, AnAllgathersResultsAreBehindTheTensors) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kAllgather).slot;
  const GpuOperation op = RunAlone(Gather(slot, 1, 65, 0, {260, 1000}));
  EXPECT_EQ(op.counts, (Counts{65, 0}));
  EXPECT_EQ(op.tensors[0].offset, 256u);
  EXPECT_EQ(op.tensors[0].result, 256u + 512u);  // 260 bytes, rounded up
  EXPECT_EQ(op.tensors[1].result, 512u);
  GpuRun run;
  run.operations.push_back(op);
  core_.OnGpuRunEnded(run, absl::OkStatus());
  EXPECT_EQ(Take<CommitSlot>().size(), 1u);  // ranks find the sizes themselves
}

TEST_F(GpuKindsTest, AnAlltoallHasAMatrix) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kAlltoall).slot;
  const GpuOperation op = RunAlone(Exchange(slot, {1, 2, 3, 4}, {16, 24}));
  EXPECT_EQ(op.counts, (Counts{1, 2, 3, 4}));
}

TEST_F(GpuKindsTest, AResultWithoutRoomSendsTheOperationToTheHost) {
  StartOne();
  const uint32_t x = Slot("x", Kind::kAllgather).slot;
  const uint32_t y = Slot("y", Kind::kAlltoall).slot;
  const uint32_t z = Slot("z", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(x, 1, 65, 0, {260, 259}));
  core_.OnReadySlot(Exchange(y, {1, 2, 3, 4}, {15, 24}));
  core_.OnReadySlot(Gather(z, 1, 0, 0, {100, 100}));  // nothing to do
  std::vector<RunOnHost> hosts;
  for (const Action& action : core_.TakeActions()) {
    EXPECT_FALSE(std::holds_alternative<RunOnGpus>(action));
    EXPECT_FALSE(std::holds_alternative<AbortBoard>(action));
    if (const auto* h = std::get_if<RunOnHost>(&action)) hosts.push_back(*h);
  }
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[1].slot, y);
  EXPECT_EQ(hosts[1].generation, 1u);
  // The ready bit comes again; then the next generation, with more room.
  core_.OnReadySlot(Gather(x, 1, 65, 0, {260, 259}));
  EXPECT_TRUE(Take<RunOnHost>().empty());
  EXPECT_EQ(RunAlone(Gather(x, 2, 65, 0, {260, 400})).generation, 2u);
}

class ForgedRoomTest : public GpuKindsTest,
                       public testing::WithParamInterface<uint64_t> {};

TEST_P(ForgedRoomTest, EndsTheEpochWithTheRanksName) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kAllgather).slot;
  core_.OnReadySlot(Gather(slot, 1, 1, 1, {8, GetParam()}));
  EXPECT_NE(AbortText().find("rank 1 has submitted allgather 'x' with 4 bytes "
                             "and room for " +
                             std::to_string(GetParam())),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, ForgedRoomTest,
                         testing::Values(kMegabyte, kMegabyte - 512, UINT64_MAX,
                                         UINT64_MAX - 1024));

TEST_F(GpuKindsTest, ABarrierCannotRunThere) {
  StartOne();
  const uint32_t slot = Slot("x", Kind::kBarrier).slot;
  core_.OnReadySlot(
      PutOnGpus(Ready(slot, 1, Kind::kBarrier, 0, 0), 2, 1, DType::kUint8));
  EXPECT_NE(AbortText().find("cannot run on GPUs"), std::string::npos);
}

// --- Two nodes ---------------------------------------------------------------

class GpuKindsOfTwoNodesTest : public GpuKindsTest {
 protected:
  void SetUp() override {
    StartTwo(kNccl);
    OpenMemories(2, 1);
    Announce(1, 0, {1, 2}, 3);  // GPUs 1 and 2 here, one on the other node
    Drop();
  }
  // The run of operation 'x', with ranks 2 and 3 on the other node's GPU.
  static proto::Run* AddOnGpus(proto::CoordinatorMessage* m, Kind kind,
                               const std::vector<uint32_t>& gpus = {1, 0, 2,
                                                                    2}) {
    proto::Run* run = AddRun(m, 1);
    AddOperation(run, 9, "x", kind, 1);
    run->set_communicator(1);
    run->mutable_member_gpus()->Assign(gpus.begin(), gpus.end());
    return run;
  }
  void Report(std::vector<uint64_t> rooms = {24, 100}) {
    core_.OnReadySlot(
        Gather(Slot("x", Kind::kAllgather).slot, 1, 2, 1, std::move(rooms)));
  }
  void Execute(const std::vector<int64_t>& dims,
               const std::vector<uint32_t>& gpus = {1, 0, 2, 2}) {
    proto::CoordinatorMessage m;
    AddOnGpus(&m, Kind::kAllgather, gpus)
        ->mutable_first_dims()
        ->Assign(dims.begin(), dims.end());
    core_.OnCoordinator(m);
  }
};

TEST_F(GpuKindsOfTwoNodesTest, AReportHasEachMembersGpuAndRoom) {
  Report();
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::PresentOperation& op = sent[0].presence().operations(0);
  EXPECT_EQ(std::vector<uint32_t>(op.gpus().begin(), op.gpus().end()),
            (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(std::vector<uint64_t>(op.gpu_rooms().begin(), op.gpu_rooms().end()),
            (std::vector<uint64_t>{24, 100}));
}

TEST_F(GpuKindsOfTwoNodesTest, ABroadcastIsCommittedByItsSlot) {
  const uint32_t slot = Slot("x", Kind::kBroadcast).slot;
  core_.OnReadySlot(
      PutOnGpus(Ready(slot, 1, Kind::kBroadcast, 100, 100), 2, 1));
  Drop();
  proto::CoordinatorMessage m;
  AddOnGpus(&m, Kind::kBroadcast);
  core_.OnCoordinator(m);
  const GpuRun run = Take<RunOnGpus>().at(0).run;
  const GpuOperation& op = run.operations.at(0);
  EXPECT_EQ(op.root, 2u);  // Ready() says rank 2
  ASSERT_EQ(op.members.size(), 4u);
  EXPECT_EQ(op.members[0].tensor, 0u);
  EXPECT_EQ(op.members[0].gpu, 1u);
  EXPECT_EQ(op.members[3].tensor, kNoTensor);
  EXPECT_EQ(op.members[3].gpu, 2u);
  core_.OnGpuRunEnded(run, absl::OkStatus());
  EXPECT_EQ(Take<CommitSlot>().at(0).slot, slot);
}

TEST_F(GpuKindsOfTwoNodesTest, ARecordTellsTheSizesOfAnAllgather) {
  Report();
  Execute({2, 1, 0, 3});
  auto actions = core_.TakeActions();
  const auto* on_gpus = std::get_if<RunOnGpus>(&actions.back());
  ASSERT_NE(on_gpus, nullptr);
  EXPECT_EQ(on_gpus->run.operations.at(0).counts, (Counts{2, 1, 0, 3}));
  core_.OnGpuRunEnded(on_gpus->run, absl::OkStatus());
  actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  const RunSpec& spec = std::get<IssueRun>(actions[0]).run;
  EXPECT_EQ(spec.site, RunSite::kExecutors);
  EXPECT_EQ(spec.kind, Kind::kAllgather);
  EXPECT_EQ(spec.bytes, 0u);
  EXPECT_TRUE(spec.blocks.empty());
  EXPECT_EQ(spec.first_dims, (std::vector<int64_t>{2, 1, 0, 3}));
  ASSERT_EQ(spec.operations.size(), 1u);
  EXPECT_EQ(spec.operations[0].generation, 1u);
}

TEST_F(GpuKindsOfTwoNodesTest, ARecordTellsTheSplitsOfAnAlltoall) {
  ReadySlot ready = PutOnGpus(
      Ready(Slot("x", Kind::kAlltoall).slot, 1, Kind::kAlltoall, 3, 1), 2, 1);
  ready.splits = {0, 1, 2, 0, 1, 0, 0, 0};
  ready.gpu_rooms = {64, 64};
  core_.OnReadySlot(ready);
  Drop();
  proto::CoordinatorMessage m;
  const std::vector<int64_t> splits = {0, 1, 2, 0, 1, 0, 0, 0,
                                       5, 0, 0, 0, 0, 0, 0, 7};
  AddOnGpus(&m, Kind::kAlltoall)
      ->mutable_splits()
      ->Assign(splits.begin(), splits.end());
  core_.OnCoordinator(m);
  const GpuRun run = Take<RunOnGpus>().at(0).run;
  EXPECT_EQ(run.operations.at(0).counts, Counts(splits.begin(), splits.end()));
  core_.OnGpuRunEnded(run, absl::OkStatus());
  const RunSpec spec = Take<IssueRun>().at(0).run;
  EXPECT_EQ(spec.splits, splits);
  EXPECT_EQ(spec.site, RunSite::kExecutors);
}

TEST_F(GpuKindsOfTwoNodesTest, OtherRowsThanReportedEndTheEpoch) {
  Report();
  Execute({2, 2, 0, 3});
  EXPECT_NE(AbortText().find("with other rows of rank 1"), std::string::npos);
}

TEST_F(GpuKindsOfTwoNodesTest, AResultThatHasNoRoomEndsTheEpoch) {
  Report({24, 23});
  Execute({2, 1, 0, 3});
  EXPECT_NE(AbortText().find("where its result has no room"),
            std::string::npos);
}

TEST_F(GpuKindsOfTwoNodesTest, AnotherGpuOfARankEndsTheEpoch) {
  Report();
  Execute({2, 1, 0, 3}, {0, 1, 2, 2});
  EXPECT_NE(AbortText().find("with another GPU of rank 0"), std::string::npos);
}

TEST_F(GpuKindsOfTwoNodesTest, AGpuBeyondTheCommunicatorEndsTheEpoch) {
  Report();
  Execute({2, 1, 0, 3}, {1, 0, 2, 3});
  EXPECT_NE(AbortText().find("but does not say on which GPUs its ranks are"),
            std::string::npos);
}

TEST_F(GpuKindsOfTwoNodesTest, MissingGpusEndTheEpoch) {
  Report();
  Execute({2, 1, 0, 3}, {});
  EXPECT_NE(AbortText().find("but does not say on which GPUs its ranks are"),
            std::string::npos);
}

}  // namespace
}  // namespace maypole::worker
