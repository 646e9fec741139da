// Staging in GPU memory that an executor shares: allreduces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/gpu/user_gpu_memory.h"
#include "client/testing/staging_gpu_testing.h"

namespace maypole {
namespace {

using cuda::fake::cuda;

TEST_F(StagingGpuTest, ResultOfAnotherTensor) {
  for (const bool on_gpu : {true, false}) {
    const Bytes ones(kBytes, 1), nines(kBytes, 9);
    const CUdeviceptr input = OnDevice(ones), output = OnDevice(nines);
    const auto op = Allreduce(input, output);
    Submit(op);
    EXPECT_NE(op->gpu_place, kNoGpuPlace);
    Write(input, nines);  // the input may be used again
    Run(op, on_gpu);
    CopyOut(op);
    EXPECT_EQ(Read(output), Bytes(kBytes, 2));
    EXPECT_EQ(Read(input), nines);
  }
}

TEST_F(StagingGpuTest, InPlace) {
  for (const bool on_gpu : {true, false}) {
    const CUdeviceptr tensor = OnDevice(Bytes(kBytes, 1));
    const auto op = Allreduce(tensor, tensor);
    Submit(op);
    Run(op, on_gpu);
    CopyOut(op);
    EXPECT_EQ(Read(tensor), Bytes(kBytes, 2));
  }
}

// Nothing is copied before and after.
TEST_F(StagingGpuTest, InPlaceInSharedMemory) {
  const auto shared = staging_->shared_gpu_memory();
  for (const bool on_gpu : {true, false}) {
    const CUdeviceptr tensor = shared->Allocate(gpu(), kBytes);
    ASSERT_NE(tensor, 0u);
    Write(tensor, Bytes(kBytes, 1));
    const auto op = Allreduce(tensor, tensor);
    Submit(op);
    EXPECT_EQ(op->gpu_place, shared->PlaceOf(tensor, kBytes));
    Run(op, on_gpu);
    if (on_gpu) {
      EXPECT_EQ(Read(tensor), Bytes(kBytes, 2));
    }
    CopyOut(op);
    EXPECT_EQ(Read(tensor), Bytes(kBytes, 2));
    const CUdeviceptr other = OnDevice(Bytes(kBytes, 9));
    CopyOut(op, other);
    EXPECT_EQ(Read(other), Bytes(kBytes, 2));
    shared->Free(tensor);
  }
}

TEST_F(StagingGpuTest, AnInputInSharedMemoryKeepsItsContents) {
  const auto shared = staging_->shared_gpu_memory();
  const CUdeviceptr input = shared->Allocate(gpu(), kBytes);
  ASSERT_NE(input, 0u);
  Write(input, Bytes(kBytes, 1));
  const CUdeviceptr output = OnDevice(Bytes(kBytes, 9));
  const auto op = Allreduce(input, output);
  Submit(op);
  RunOnGpu(op);
  CopyOut(op);
  EXPECT_EQ(Read(input), Bytes(kBytes, 1));
  EXPECT_EQ(Read(output), Bytes(kBytes, 2));
  shared->Free(input);
}

TEST_F(StagingGpuTest, StepsUseTheSameBlock) {
  const CUdeviceptr tensor = OnDevice(Bytes(kBytes, 0));
  uint64_t place = kNoGpuPlace;
  for (unsigned char step = 0; step < 10; ++step) {
    const auto op = Allreduce(tensor, tensor);
    Submit(op);
    if (step == 0) place = op->gpu_place;
    EXPECT_EQ(op->gpu_place, place);
    RunOnGpu(op);
    CopyOut(op);
    EXPECT_EQ(Read(tensor), Bytes(kBytes, step + 1));
  }
  EXPECT_EQ(executor_->requests(), 1);
}

TEST_F(StagingGpuTest, OthersRunOnTheHost) {
  const CUdeviceptr tensor = OnDevice(Bytes(kBytes, 1));
  const auto place = [&](const std::shared_ptr<Operation>& op) {
    CopyIn(op);
    EXPECT_NE(op->input, nullptr);
    EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    bool done = false;
    EXPECT_TRUE(op->staged->BringToHost(op.get(), &done).ok());
    EXPECT_TRUE(done);
    return op->gpu_place;
  };
  EXPECT_EQ(place(Allreduce(tensor, tensor, 4096)), kNoGpuPlace);  // eager
  // The communicator reports that the operation cannot run on GPUs.
  communicator_->all_use_gpu = false;
  EXPECT_EQ(place(Allreduce(tensor, tensor)), kNoGpuPlace);
  communicator_->all_use_gpu = true;
  // More than the limit.
  const Bytes large(uint64_t{65} << 20, 1);
  const CUdeviceptr too_large = OnDevice(large);
  EXPECT_EQ(place(Allreduce(too_large, too_large, large.size())), kNoGpuPlace);

  Open(GpuMemoryMode::kNone);
  EXPECT_EQ(place(Allreduce(tensor, tensor)), kNoGpuPlace);
  EXPECT_EQ(executor_->requests(), 0);
}

// A GPU that runs one process at a time takes longer to switch to the next
// process than small tensors take to the host and back.
TEST_F(StagingGpuTest, SmallOnesRunOnTheHostUnlessKernelsRunSideBySide) {
  Open(GpuMemoryMode::kAuto, GpuMemoryOptions::kByDevice);
  const auto runs_on_gpu = [&](CUdeviceptr tensor, uint64_t bytes) {
    const auto op = Allreduce(tensor, tensor, bytes);
    CopyIn(op);
    EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    return op->gpu_place != kNoGpuPlace;
  };
  const bool side_by_side = gpu().under_mps();
  constexpr uint64_t kCopied = Staging::kCopiedHostBytes;
  const CUdeviceptr tensor = OnDevice(Bytes(kCopied + 4, 1));
  EXPECT_EQ(runs_on_gpu(tensor, kCopied), side_by_side);
  EXPECT_TRUE(runs_on_gpu(tensor, kCopied + 4));
  const auto shared = staging_->shared_gpu_memory();
  constexpr uint64_t kShared = Staging::kSharedHostBytes;
  const CUdeviceptr there = shared->Allocate(gpu(), kShared + 4);
  ASSERT_NE(there, 0u);
  EXPECT_EQ(runs_on_gpu(there, kShared), side_by_side);
  EXPECT_TRUE(runs_on_gpu(there, kShared + 4));
  shared->Free(there);
  // The user's setting takes precedence.
  Open(GpuMemoryMode::kAuto, 8192);
  EXPECT_FALSE(runs_on_gpu(tensor, 8192));
  EXPECT_TRUE(runs_on_gpu(tensor, 8196));
}

// The fake aborts if memory is unmapped that a stream uses.
TEST_F(StagingGpuTest, MemoryStaysUntilTheGpuIsDone) {
  const CUdeviceptr tensor = OnDevice(Bytes(kBytes, 1));
  for (const bool watched : {false, true}) {
    Open(GpuMemoryMode::kAuto);
    Delay(stream(), 100);
    auto op = Allreduce(tensor, tensor);
    CopyIn(op);
    if (watched) staging_->Watch(op);
    Close();
    op.reset();
    EXPECT_EQ(cuda().cuStreamQuery(stream()), cuda::CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  }
}

// The rank leaves while an input is being copied to the host.
TEST_F(StagingGpuTest, LeavesWhileBringingToTheHost) {
  const CUdeviceptr tensor = OnDevice(Bytes(kBytes, 1));
  auto op = Allreduce(tensor, tensor);
  Submit(op);
  bool done = false;
  EXPECT_TRUE(op->staged->BringToHost(op.get(), &done).ok());
  Close();
  op.reset();
}

// --- Memory of the user ------------------------------------------------------

// Two do not fit.
constexpr uint64_t kLarge = uint64_t{40} << 20;

class UserGpuMemoryTest : public StagingGpuTest {
 protected:
  Code Allocate(CUdeviceptr* memory, uint64_t bytes = kLarge) {
    return AllocateUserGpuMemory(staging_, 0, bytes, memory).code();
  }
  static void Free(CUdeviceptr memory, std::vector<CUstream> streams) {
    const Status s = FreeUserGpuMemory(memory, streams);
    EXPECT_TRUE(s.ok()) << s.message();
  }
};

TEST_F(UserGpuMemoryTest, IsReducedInPlace) {
  CUdeviceptr tensor = 0;
  ASSERT_EQ(Allocate(&tensor, kBytes), Code::kOk);
  Write(tensor, Bytes(kBytes, 1));
  const auto op = Allreduce(tensor, tensor);
  Submit(op);
  EXPECT_EQ(op->gpu_place,
            staging_->shared_gpu_memory()->PlaceOf(tensor, kBytes));
  RunOnGpu(op);
  EXPECT_EQ(Read(tensor), Bytes(kBytes, 2));
  CopyOut(op);
  Free(tensor, {stream()});
}

TEST_F(UserGpuMemoryTest, IsUsedAgainWhenAllItsStreamsAreDone) {
  const CUstream other = NewStream();
  for (const CUstream late : {stream(), other}) {
    CUdeviceptr first = 0, second = 0;
    ASSERT_EQ(Allocate(&first), Code::kOk);
    Hold(late);
    Free(first, {stream(), other});
    EXPECT_EQ(Allocate(&second), Code::kResourceExhausted);
    EXPECT_EQ(second, 0u);
    Release();
    EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuStreamSynchronize(other), CUDA_SUCCESS);
    ASSERT_EQ(Allocate(&second), Code::kOk);
    EXPECT_EQ(second, first);
    Free(second, {});
  }
  CUdeviceptr last = 0;  // no stream used it
  EXPECT_EQ(Allocate(&last), Code::kOk);
  Free(last, {});
}

// Operations also get freed memory, without another allocation.
TEST_F(UserGpuMemoryTest, GoesBackToOperations) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(Allocate(&memory), Code::kOk);
  const uint64_t place = staging_->shared_gpu_memory()->PlaceOf(memory, 1);
  Hold(stream());
  Free(memory, {stream()});
  Release();
  EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  const CUdeviceptr tensor = OnDevice(Bytes(kLarge, 1));
  const auto op = Allreduce(tensor, tensor, kLarge);
  Submit(op);
  EXPECT_EQ(op->gpu_place, place);
}

TEST_F(UserGpuMemoryTest, OutlivesTheEpochAndItsStreamsWork) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(Allocate(&memory, kBytes), Code::kOk);
  CUdeviceptr idle = 0;
  ASSERT_EQ(Allocate(&idle, kBytes), Code::kOk);
  Close();
  Write(memory, Bytes(kBytes, 7));
  EXPECT_EQ(Read(memory), Bytes(kBytes, 7));
  Free(idle, {});
  Hold(stream());
  Write(memory, Bytes(kBytes, 8));
  Free(memory, {stream()});
  EXPECT_EQ(cuda().cuStreamQuery(stream()), cuda::CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
}

TEST_F(UserGpuMemoryTest, IsNotUsedAgainIfAGraphMayUseIt) {
  CUdeviceptr memory = 0, other = 0;
  ASSERT_EQ(Allocate(&memory), Code::kOk);
  const CUstream capturing = NewStream();
  ASSERT_EQ(cuda::fake::more().cuStreamBeginCapture_v2(
                capturing, cuda::CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  const std::vector<CUstream> streams = {stream(), capturing};
  const Status s = FreeUserGpuMemory(memory, streams);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_THAT(s.message(), testing::HasSubstr("never used again"));
  void* graph = nullptr;
  EXPECT_EQ(cuda::fake::more().cuStreamEndCapture(capturing, &graph),
            CUDA_SUCCESS);
  EXPECT_EQ(Allocate(&other), Code::kResourceExhausted);
  KeepsSegments();
}

TEST_F(UserGpuMemoryTest, Refuses) {
  CUdeviceptr memory = 0;
  EXPECT_EQ(AllocateUserGpuMemory(staging_, 2, 1, &memory).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Allocate(&memory, uint64_t{65} << 20), Code::kResourceExhausted);
  EXPECT_EQ(memory, 0u);
  ASSERT_EQ(Allocate(&memory, 0), Code::kOk);
  Free(memory, {});
  EXPECT_EQ(FreeUserGpuMemory(memory, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(FreeUserGpuMemory(1, {}).code(), Code::kInvalidArgument);
  Free(0, {});
  Open(GpuMemoryMode::kNone);
  EXPECT_EQ(Allocate(&memory, 1), Code::kResourceExhausted);
}

}  // namespace
}  // namespace maypole
