// StagingRanksTest: for tests of Staging, two ranks of one process that call
// NCCL themselves, each on its own GPU, on the fake driver and the fake NCCL.
// The test plays executor and progress engine.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_TESTING_STAGING_RANKS_TESTING_H_
#define MAYPOLE_CLIENT_TESTING_STAGING_RANKS_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "client/gpu/staging.h"
#include "client/testing/fake_communicator.h"
#include "common/gpu/nccl/nccl.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CurrentGpu;
using cuda::CUstream;
using cuda::Gpu;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Values = std::vector<float>;

inline constexpr char kLibrary[] = "tests/gpu/fake_nccl/libnccl.so.2";
inline constexpr size_t kElements = 20'000;
inline constexpr uint32_t kCommunicator = 33;

// Answers requests at once, and keeps the handlers for the test.
class AnsweringCommunicator : public FakeCommunicator {
 public:
  Status SendGpuMemory(const session::GpuMemoryRequest& request, int) override {
    auto reply = session::Make<session::GpuMemoryReply>();
    reply.number = request.number;
    if (refuses) {
      reply.code = static_cast<uint32_t>(Code::kFailedPrecondition);
      session::SetText(reply.text, "another NCCL");
    }
    requests.push_back(request);
    std::function<void(const session::GpuMemoryReply&)> handler;
    {
      std::lock_guard lock(mutex_);
      handler = on_reply_;
    }
    handler(reply);
    return Status();
  }
  void OnGpuMemoryReply(
      std::function<void(const session::GpuMemoryReply&)> handler) override {
    std::lock_guard lock(mutex_);
    on_reply_ = std::move(handler);
  }
  void OnConnectGpu(
      std::function<void(const session::ConnectGpu&)> handler) override {
    std::lock_guard lock(mutex_);
    on_connect_ = std::move(handler);
  }
  void OnEpochOver(std::function<void()> handler) override {
    std::lock_guard lock(mutex_);
    on_over_ = std::move(handler);
  }
  void ExpectMessages(int more) override { expected += more; }
  void NoteGpuRuns(int more) override { runs += more; }
  Status EpochStatus() const override {
    std::lock_guard lock(mutex_);
    return epoch_;
  }

  void Connect(const session::ConnectGpu& connect) {
    std::lock_guard lock(mutex_);
    on_connect_(connect);
  }
  void EndEpoch(Status why) {
    std::lock_guard lock(mutex_);
    epoch_ = std::move(why);
    on_over_();
  }

  bool MayRunOnGpus(const ProcessSet&, Kind, DType,
                    std::string_view) const override {
    return true;
  }

  bool refuses = false;
  std::vector<session::GpuMemoryRequest> requests;
  std::atomic<int> expected{0};
  std::atomic<int> runs{0};

 private:
  mutable std::mutex mutex_;
  std::function<void(const session::GpuMemoryReply&)> on_reply_;
  std::function<void(const session::ConnectGpu&)> on_connect_;
  std::function<void()> on_over_;
  Status epoch_;
};

struct Rank {
  const Gpu* gpu = nullptr;
  AnsweringCommunicator communicator;
  std::shared_ptr<Staging> staging;
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> tensors;
};

class StagingRanksTest : public cuda::fake::FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    setenv("MAYPOLE_NCCL_LIBRARY", kLibrary, 1);
    for (int i = 0; i < 2; ++i) {
      Rank& r = ranks_[i];
      ASSERT_TRUE(Gpu::Open(cuda::fake::cuda(), i, &r.gpu).ok());
      const CurrentGpu current(*r.gpu);
      ASSERT_EQ(cuda::fake::cuda().cuStreamCreate(&r.stream,
                                                  cuda::CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
      ASSERT_TRUE(Staging::Open(&r.communicator, nullptr,
                                {.mode = GpuMemoryMode::kOwn}, &r.staging)
                      .ok());
    }
  }
  void TearDown() override {
    for (Rank& r : ranks_) r.staging->Leave();
    for (Rank& r : ranks_) {
      const CurrentGpu current(*r.gpu);
      EXPECT_EQ(cuda::fake::cuda().cuStreamSynchronize(r.stream), CUDA_SUCCESS);
      EXPECT_EQ(cuda::fake::cuda().cuStreamDestroy(r.stream), CUDA_SUCCESS);
      for (const CUdeviceptr t : r.tensors) cuda::fake::cuda().cuMemFree(t);
      r.staging.reset();
    }
    FakeTest::TearDown();
  }

  // Enqueues the write.
  CUdeviceptr OnDevice(Rank& r, const Values& values) {
    const CurrentGpu current(*r.gpu);
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuda::fake::cuda().cuMemAlloc(&memory, values.size() * 4),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda::fake::cuda().cuMemcpyAsync(
                  memory, reinterpret_cast<CUdeviceptr>(values.data()),
                  values.size() * 4, r.stream),
              CUDA_SUCCESS);
    r.tensors.push_back(memory);
    return memory;
  }
  static Values Read(Rank& r, CUdeviceptr memory, size_t count = kElements) {
    const CurrentGpu current(*r.gpu);
    Values out(count);
    EXPECT_EQ(cuda::fake::cuda().cuMemcpyAsync(
                  reinterpret_cast<CUdeviceptr>(out.data()), memory,
                  out.size() * 4, r.stream),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda::fake::cuda().cuStreamSynchronize(r.stream), CUDA_SUCCESS);
    return out;
  }
  // A rank's part of an operation: its input and output; bytes that are not
  // needed are 0.
  struct Part {
    Kind kind = Kind::kAllreduce;
    CUdeviceptr input = 0;
    CUdeviceptr output = 0;
    size_t elements = kElements;
    uint64_t input_bytes = kElements * 4;
    uint64_t output_bytes = kElements * 4;
  };
  std::shared_ptr<Operation> CopyIn(Rank& r, const Part& part) {
    auto op = std::make_shared<Operation>();
    op->name = "x";
    op->slot = 5;
    op->generation = ++generation_ / 2 + 1;
    op->signature.kind = part.kind;
    op->signature.dtype = DType::kFloat32;
    op->signature.op = Op::kSum;
    op->signature.device = Device::kGpu;
    op->signature.dims = 1;
    op->signature.shape[0] = static_cast<int64_t>(part.elements);
    op->set = std::make_shared<const ProcessSet>(ProcessSet{0, {0, 1}, {0, 1}});
    op->input = reinterpret_cast<const std::byte*>(part.input);
    op->output = reinterpret_cast<std::byte*>(part.output);
    const Status s = r.staging->CopyIn(op.get(), r.stream, part.input_bytes,
                                       part.output_bytes);
    EXPECT_TRUE(s.ok()) << s.message();
    return op;
  }
  std::shared_ptr<Operation> CopyIn(Rank& r, CUdeviceptr input,
                                    CUdeviceptr output) {
    return CopyIn(r, Part{.input = input, .output = output});
  }
  // As CopyIn(), until the GPU has been announced.
  std::shared_ptr<Operation> Submit(Rank& r, CUdeviceptr input,
                                    CUdeviceptr output) {
    return Submit(r, Part{.input = input, .output = output});
  }
  std::shared_ptr<Operation> Submit(Rank& r, const Part& part) {
    const auto until = steady_clock::now() + seconds(20);
    auto op = CopyIn(r, part);
    while (op->gpu_place == kNoGpuPlace && steady_clock::now() < until) {
      --generation_;
      op = CopyIn(r, part);
    }
    EXPECT_NE(op->gpu_place, kNoGpuPlace);
    EXPECT_TRUE(op->input_ready);
    return op;
  }
  // rows: of an allgather or alltoall.
  static std::shared_ptr<RankRun> Begin(const std::shared_ptr<Operation>& op,
                                        uint32_t rank = 0,
                                        const std::vector<int64_t>& rows = {}) {
    return op->staged->BeginOnRank({kCommunicator, rank, rows}, {op.get()});
  }
  void Connect() {
    const nccl::Nccl* nccl = nullptr;
    ASSERT_TRUE(nccl::OpenNccl(kLibrary, &nccl).ok());
    nccl::ncclUniqueId id = {};
    ASSERT_EQ(nccl->ncclGetUniqueId(&id), nccl::ncclSuccess);
    for (uint32_t i = 0; i < 2; ++i) {
      auto connect = session::Make<session::ConnectGpu>();
      connect.number = kCommunicator;
      connect.size = 2;
      connect.rank = i;
      connect.id_bytes = sizeof(id.internal);
      std::copy(std::begin(id.internal), std::end(id.internal), connect.id);
      ranks_[i].communicator.Connect(connect);
    }
  }
  static Status AwaitEnqueued(RankRun& run) {
    const auto until = steady_clock::now() + seconds(20);
    auto state = RankRun::State::kWaiting;
    while (steady_clock::now() < until) {
      const Status s = run.Poll(&state);
      if (!s.ok() || state != RankRun::State::kWaiting) return s;
      std::this_thread::yield();
    }
    return Status(Code::kDeadlineExceeded, "not enqueued");
  }
  // Does what the progress engine does when the run is on the stream.
  static void Finish(const std::shared_ptr<Operation>& op, RankRun& run) {
    const Status s = AwaitEnqueued(run);
    ASSERT_TRUE(s.ok()) << s.message();
    op->staged->ResultOnGpu(0);
    op->done = true;
  }

  Rank ranks_[2];
  uint32_t generation_ = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_STAGING_RANKS_TESTING_H_
