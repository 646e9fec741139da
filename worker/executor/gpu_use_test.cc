#include "worker/executor/gpu_use.h"

#include <gtest/gtest.h>

#include <string>

namespace maypole::worker {
namespace {

class GpuUseTest : public testing::Test {
 protected:
  GpuUseTest() : page_(*SharedStats::Create()), use_(&*page_) {}

  // The rank's memory number 1, on the GPU whose UUID is full of `uuid`.
  void Ask(uint32_t rank, uint64_t bytes, uint8_t uuid) {
    auto request = session::Make<session::GpuMemoryRequest>();
    request.number = 1;
    request.bytes = bytes;
    std::fill(std::begin(request.uuid), std::end(request.uuid), uuid);
    use_.OnAction(OpenGpuMemory{100 + rank, {rank, 1}, request}, 0);
  }
  void Answer(uint32_t rank, uint32_t gpu, Code code = Code::kOk) {
    auto reply = session::Make<session::GpuMemoryReply>();
    reply.number = 1;
    reply.gpu = gpu;
    reply.code = static_cast<uint32_t>(code);
    use_.OnAction(ReplyClient{100 + rank, reply}, 0);
  }
  // An operation of ten elements of two ranks.
  void Begin(uint32_t slot, uint32_t gpu, int64_t now_ns) {
    Begin(slot, gpu, gpu, now_ns);
  }
  void Begin(uint32_t slot, uint32_t gpu0, uint32_t gpu1, int64_t now_ns) {
    RunOnGpus action;
    action.run.operations.push_back(
        {.slot = slot,
         .generation = 1,
         .dtype = DType::kFloat32,
         .elements = 10,
         .tensors = {{.gpu = gpu0}, {.gpu = gpu1}}});
    use_.OnAction(action, now_ns);
  }
  GpuStats& gpu(int i) { return page_->gpus[i]; }

  SharedStats page_;
  GpuUse use_;
};

TEST_F(GpuUseTest, TimesOfRunsCountOnceForEachOfTheirGpus) {
  Ask(0, 4096, 7);
  Answer(0, 3);
  Ask(1, 4096, 8);
  Answer(1, 4);
  GpuRun run{.operations = {{.tensors = {{.gpu = 3}, {.gpu = 4}}},
                            {.tensors = {{.gpu = 3}, {.gpu = 9}}}},
             .times = {.ordered = 100, .begun = 130}};
  use_.OnRunEnded(run);
  EXPECT_EQ(gpu(0).wait_ns, 30u);
  EXPECT_EQ(gpu(0).nccl_ns, 0u);
  run.times.launched = 140;
  run.times.ended = 190;
  use_.OnRunEnded(run);
  for (int i : {0, 1}) {
    EXPECT_EQ(gpu(i).wait_ns, 60u);
    EXPECT_EQ(gpu(i).nccl_ns, 50u);
  }
  run.times = {.ordered = 100};  // it was refused
  use_.OnRunEnded(run);
  EXPECT_EQ(gpu(0).wait_ns, 60u);
}

TEST_F(GpuUseTest, OperationsAreCountedBySite) {
  Begin(1, 3, 0);
  use_.OnAction(RunOnHost{1, 1}, 0);
  use_.OnAction(RunOnHost{2, 1}, 0);
  IssueRun issue;
  issue.run.operations.resize(3);
  use_.OnAction(issue, 0);  // a run of the host, of host tensors
  issue.run.site = RunSite::kRanks;
  use_.OnAction(issue, 0);
  EXPECT_EQ(page_->gpu_site_operations[0], 2u);
  EXPECT_EQ(page_->gpu_site_operations[1], 1u);
  EXPECT_EQ(page_->gpu_site_operations[2], 3u);
}

TEST_F(GpuUseTest, MemoryIsHeldFromTheAnswerUntilTheRankLeaves) {
  Ask(0, 4096, 7);
  EXPECT_EQ(page_->gpu_count, 0u);
  Answer(0, 3);
  Ask(1, 1000, 7);
  Answer(1, 3);
  Ask(2, 500, 8);
  Answer(2, 4);
  Ask(3, 99, 9);
  Answer(3, 0, Code::kUnavailable);
  EXPECT_EQ(page_->gpu_count, 2u);
  EXPECT_EQ(gpu(0).memory_bytes, 5096u);
  EXPECT_EQ(gpu(1).memory_bytes, 500u);
  use_.OnAction(CloseGpuMemories{0}, 0);
  use_.OnAction(CloseGpuMemories{3}, 0);
  EXPECT_EQ(gpu(0).memory_bytes, 1000u);
  use_.OnEpochOver();
  EXPECT_EQ(gpu(0).memory_bytes, 0u);
}

TEST_F(GpuUseTest, OperationsThatSucceedCount) {
  Ask(0, 4096, 7);
  Answer(0, 3);
  Begin(5, 3, 1000);
  Begin(6, 3, 1000);
  Begin(7, 9, 1000);  // no such GPU
  use_.OnAction(CommitSlot{5, 1}, 4000);
  use_.OnAction(FailSlot{6, 1}, 4000);
  use_.OnAction(CommitSlot{6, 1}, 4000);
  use_.OnAction(CommitSlot{8, 1}, 4000);  // on the host
  EXPECT_EQ(gpu(0).operations, 1u);
  EXPECT_EQ(gpu(0).operation_bytes, 80u);
  EXPECT_EQ(gpu(0).operation_ns, 3000u);
}

TEST_F(GpuUseTest, AnOperationOnTwoGpusCountsOnBoth) {
  Ask(0, 4096, 7);
  Answer(0, 3);
  Ask(1, 4096, 8);
  Answer(1, 4);
  Begin(5, 3, 4, 1000);
  use_.OnAction(CommitSlot{5, 1}, 4000);
  for (int i : {0, 1}) {
    EXPECT_EQ(gpu(i).operations, 1u);
    EXPECT_EQ(gpu(i).operation_bytes, 40u);
    EXPECT_EQ(gpu(i).operation_ns, 3000u);
  }
}

TEST_F(GpuUseTest, AGpuKeepsItsEntryInTheNextEpoch) {
  Ask(0, 1, 7);
  Answer(0, 0);
  use_.OnEpochOver();
  Ask(0, 2, 8);
  Answer(0, 0);
  Ask(1, 4, 7);
  Answer(1, 1);
  EXPECT_EQ(gpu(0).memory_bytes, 4u);
  EXPECT_EQ(gpu(1).memory_bytes, 2u);
}

TEST_F(GpuUseTest, ThereIsALimit) {
  for (uint32_t i = 0; i <= kMaxGpus; ++i) {
    Ask(i, 1, static_cast<uint8_t>(i + 1));
    Answer(i, i);
  }
  EXPECT_EQ(page_->gpu_count, kMaxGpus);
}

}  // namespace
}  // namespace maypole::worker
