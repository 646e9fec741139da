// Staging in GPU memory that an executor in another process shares, on the fake
// driver. The test plays the progress engine: it decides whether an operation
// runs on the GPU or on the host.
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

#include "client/gpu/staging.h"
#include "client/gpu/user_gpu_memory.h"
#include "client/testing/gpu_memory_executor.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CUstream;
using cuda::Gpu;
using cuda::fake::cuda;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

constexpr uint64_t kBytes = 100'000;

class FakeCommunicator : public Communicator {
 public:
  explicit FakeCommunicator(GpuMemoryExecutor* executor) : executor_(executor) {
    executor->OnReply([this](const session::GpuMemoryReply& reply) {
      std::lock_guard lock(mutex_);
      if (handler_ != nullptr) handler_(reply);
    });
  }

  Status Start(std::span<const std::shared_ptr<Operation>>) override {
    return Status();
  }
  void InputReady(const std::shared_ptr<Operation>&) override {
    ready.fetch_add(1);
  }
  void InputFailed(const std::shared_ptr<Operation>&,
                   const Status& error) override {
    ADD_FAILURE() << error.message();
  }
  std::shared_ptr<const ProcessSet> FindSet(uint32_t) const override {
    return nullptr;
  }
  void Progress(const Operation&) override {}
  Status Await(const Operation&, int) override { return Status(); }
  void Leave() override {}
  bool homogeneous() const override { return true; }
  Status SendGpuMemory(const session::GpuMemoryRequest& request,
                       int fd) override {
    return executor_->Send(request, fd);
  }
  void OnGpuMemoryReply(
      std::function<void(const session::GpuMemoryReply&)> handler) override {
    std::lock_guard lock(mutex_);
    handler_ = std::move(handler);
  }
  uint64_t eager_bytes() const override { return 4096; }
  bool MayReduceOnGpus(const ProcessSet&, DType,
                       std::string_view) const override {
    return all_use_gpu;
  }
  void Wake() override { ++wakes; }

  std::atomic<int> ready{0};
  std::atomic<int> wakes{0};
  bool all_use_gpu = true;

 private:
  GpuMemoryExecutor* const executor_;
  std::mutex mutex_;
  std::function<void(const session::GpuMemoryReply&)> handler_;
};

class StagingGpuTest : public cuda::fake::FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    ASSERT_TRUE(Gpu::Open(cuda(), 0, &gpu_).ok());
    free_before_ = FreeBytes();
    Open(GpuMemoryMode::kAuto);
  }
  void TearDown() override {
    Close();
    for (const CUdeviceptr tensor : tensors_) cuda().cuMemFree(tensor);
    const auto until = steady_clock::now() + seconds(20);
    while (FreeBytes() != free_before_ - leaked_ &&
           steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(FreeBytes(), free_before_ - leaked_);
    FakeTest::TearDown();
  }

  void Open(GpuMemoryMode mode) {
    Close();
    executor_ =
        std::make_unique<GpuMemoryExecutor>("good", "devices=1,memory=256M");
    communicator_ = std::make_unique<FakeCommunicator>(executor_.get());
    const Status s = Staging::Open(communicator_.get(), nullptr,
                                   {mode, int64_t{64} << 20}, &staging_);
    ASSERT_TRUE(s.ok()) << s.message();
    if (mode == GpuMemoryMode::kNone) return;
    // Shared memory is there when the executor has answered.
    const auto shared = staging_->shared_gpu_memory();
    const CUdeviceptr tensor = shared->Allocate(gpu(), 1);
    ASSERT_NE(tensor, 0u);
    shared->Free(tensor);
  }
  void Close() {
    if (staging_ != nullptr) staging_->Leave();
    staging_.reset();
    executor_.reset();
    communicator_.reset();
  }

  CUdeviceptr OnDevice(const Bytes& bytes) {
    const CUdeviceptr memory = Alloc(bytes.size());
    tensors_.push_back(memory);
    Write(memory, bytes);
    return memory;
  }
  void Write(CUdeviceptr memory, const Bytes& bytes) {
    EXPECT_EQ(cuda().cuMemcpyAsync(memory,
                                   reinterpret_cast<CUdeviceptr>(bytes.data()),
                                   bytes.size(), stream()),
              CUDA_SUCCESS);
  }
  Bytes Read(CUdeviceptr memory) {
    Bytes out(kBytes);
    EXPECT_EQ(cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(out.data()),
                                   memory, out.size(), stream()),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    return out;
  }

  static std::shared_ptr<Operation> Allreduce(CUdeviceptr input,
                                              CUdeviceptr output,
                                              uint64_t bytes = kBytes) {
    auto op = std::make_shared<Operation>();
    op->name = "x";
    op->signature.kind = Kind::kAllreduce;
    op->signature.dtype = DType::kUint8;
    op->signature.device = Device::kGpu;
    op->signature.dims = 1;
    op->signature.shape[0] = static_cast<int64_t>(bytes);
    op->set = std::make_shared<const ProcessSet>(ProcessSet{0, {0, 1}, {0, 1}});
    op->input = reinterpret_cast<const std::byte*>(input);
    op->output = reinterpret_cast<std::byte*>(output);
    return op;
  }

  void CopyIn(const std::shared_ptr<Operation>& op) {
    const uint64_t bytes = op->signature.Bytes();
    const Status s = staging_->CopyIn(op.get(), stream(), bytes, bytes);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  // Copies in, and waits until the input is ready.
  void Submit(const std::shared_ptr<Operation>& op) {
    const int before = communicator_->ready.load();
    CopyIn(op);
    EXPECT_FALSE(op->input_ready);
    staging_->Watch(op);
    const auto until = steady_clock::now() + seconds(20);
    while (communicator_->ready.load() == before &&
           steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(communicator_->ready.load(), before + 1);
  }

  // The operation adds 1 to each byte.
  void RunOnGpu(const std::shared_ptr<Operation>& op) {
    ASSERT_NE(op->gpu_place, kNoGpuPlace);
    EXPECT_EQ(op->input, nullptr);
    EXPECT_EQ(op->output, nullptr);
    executor_->TouchAndWait(op->gpu_place, op->signature.Bytes());
    op->staged->ReducedOnGpu();
    op->done = true;
  }
  void RunOnHost(const std::shared_ptr<Operation>& op) {
    // As the driver thread: sleeps until it is woken.
    bool done = false;
    const auto until = steady_clock::now() + seconds(20);
    while (!done && steady_clock::now() < until) {
      const int wakes = communicator_->wakes.load();
      const Status s = op->staged->BringToHost(op.get(), &done);
      ASSERT_TRUE(s.ok()) << s.message();
      while (!done && communicator_->wakes.load() == wakes &&
             steady_clock::now() < until) {
        std::this_thread::yield();
      }
    }
    ASSERT_NE(op->input, nullptr);
    for (uint64_t i = 0; i < op->signature.Bytes(); ++i) {
      op->output[i] =
          static_cast<std::byte>(std::to_integer<unsigned>(op->input[i]) + 1);
    }
    op->done = true;
  }
  void Run(const std::shared_ptr<Operation>& op, bool on_gpu) {
    on_gpu ? RunOnGpu(op) : RunOnHost(op);
  }
  void CopyOut(const std::shared_ptr<Operation>& op, CUdeviceptr to = 0) {
    const Status s =
        staging_->CopyOut(*op, stream(), to, CopyOutReturns::kWhenDone);
    EXPECT_TRUE(s.ok()) << s.message();
  }

  static size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  const Gpu& gpu() const { return *gpu_; }
  // What there is now stays when the test ends.
  void KeepsSegments() { leaked_ = free_before_ - FreeBytes(); }

  std::unique_ptr<GpuMemoryExecutor> executor_;
  std::unique_ptr<FakeCommunicator> communicator_;
  std::shared_ptr<Staging> staging_;

 private:
  const Gpu* gpu_ = nullptr;
  size_t free_before_ = 0;
  size_t leaked_ = 0;
  std::vector<CUdeviceptr> tensors_;
};

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
  auto op = Allreduce(tensor, tensor);
  op->signature.kind = Kind::kBroadcast;
  EXPECT_EQ(place(op), kNoGpuPlace);
  // The communicator says that GPUs cannot.
  communicator_->all_use_gpu = false;
  EXPECT_EQ(place(Allreduce(tensor, tensor)), kNoGpuPlace);
  communicator_->all_use_gpu = true;
  // More than the limit.
  op.reset();
  const Bytes large(uint64_t{65} << 20, 1);
  const CUdeviceptr too_large = OnDevice(large);
  EXPECT_EQ(place(Allreduce(too_large, too_large, large.size())), kNoGpuPlace);

  Open(GpuMemoryMode::kNone);
  EXPECT_EQ(place(Allreduce(tensor, tensor)), kNoGpuPlace);
  EXPECT_EQ(executor_->requests(), 0);
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

// It ends while its input is on the way to the host.
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

// Operations get it, too, without another allocation.
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
