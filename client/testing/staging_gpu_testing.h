// StagingGpuTest: a fixture for staging in GPU memory that an executor in
// another process shares, on the fake driver. The test plays the progress
// engine: it decides whether an operation runs on the GPU or on the host.
#ifndef MAYPOLE_CLIENT_TESTING_STAGING_GPU_TESTING_H_
#define MAYPOLE_CLIENT_TESTING_STAGING_GPU_TESTING_H_

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

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CUstream;
using cuda::Gpu;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

inline constexpr uint64_t kBytes = 100'000;

class SharingCommunicator : public Communicator {
 public:
  explicit SharingCommunicator(GpuMemoryExecutor* executor)
      : executor_(executor) {
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
  Status StartTimeline(const std::string&, bool) override { return Status(); }
  Status StopTimeline() override { return Status(); }
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
  bool MayRunOnGpus(const ProcessSet&, Kind, DType,
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
    ASSERT_TRUE(Gpu::Open(cuda::fake::cuda(), 0, &gpu_).ok());
    free_before_ = FreeBytes();
    Open(GpuMemoryMode::kAuto);
  }
  void TearDown() override {
    Close();
    for (const CUdeviceptr tensor : tensors_)
      cuda::fake::cuda().cuMemFree(tensor);
    const auto until = steady_clock::now() + seconds(20);
    while (FreeBytes() != free_before_ - leaked_ &&
           steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(FreeBytes(), free_before_ - leaked_);
    FakeTest::TearDown();
  }

  void Open(GpuMemoryMode mode, int64_t host_bytes = 0) {
    Close();
    executor_ =
        std::make_unique<GpuMemoryExecutor>("good", "devices=1,memory=256M");
    communicator_ = std::make_unique<SharingCommunicator>(executor_.get());
    const Status s = Staging::Open(communicator_.get(), nullptr,
                                   {.mode = mode,
                                    .limit = int64_t{64} << 20,
                                    .host_bytes = host_bytes},
                                   &staging_);
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
    EXPECT_EQ(cuda::fake::cuda().cuMemcpyAsync(
                  memory, reinterpret_cast<CUdeviceptr>(bytes.data()),
                  bytes.size(), stream()),
              CUDA_SUCCESS);
  }
  Bytes Read(CUdeviceptr memory, uint64_t bytes = kBytes) {
    Bytes out(bytes);
    EXPECT_EQ(cuda::fake::cuda().cuMemcpyAsync(
                  reinterpret_cast<CUdeviceptr>(out.data()), memory, out.size(),
                  stream()),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda::fake::cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
    return out;
  }

  static std::shared_ptr<Operation> Allreduce(CUdeviceptr input,
                                              CUdeviceptr output,
                                              uint64_t bytes = kBytes) {
    return Make(Kind::kAllreduce, input, output, bytes);
  }
  static std::shared_ptr<Operation> Make(Kind kind, CUdeviceptr input,
                                         CUdeviceptr output, uint64_t bytes) {
    auto op = std::make_shared<Operation>();
    op->name = "x";
    op->signature.kind = kind;
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
    op->staged->ResultOnGpu(0);
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
    EXPECT_EQ(cuda::fake::cuda().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  const Gpu& gpu() const { return *gpu_; }
  // The segments that exist now stay when the test ends.
  void KeepsSegments() { leaked_ = free_before_ - FreeBytes(); }

  std::unique_ptr<GpuMemoryExecutor> executor_;
  std::unique_ptr<SharingCommunicator> communicator_;
  std::shared_ptr<Staging> staging_;

 private:
  const Gpu* gpu_ = nullptr;
  size_t free_before_ = 0;
  size_t leaked_ = 0;
  std::vector<CUdeviceptr> tensors_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_STAGING_GPU_TESTING_H_
