// Two ranks of one process that call NCCL themselves, each on its own GPU, on
// the fake driver and the fake NCCL. The test plays executor and progress
// engine.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/gpu/staging.h"
#include "common/gpu/nccl/nccl.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CurrentGpu;
using cuda::CUstream;
using cuda::Gpu;
using cuda::fake::cuda;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Values = std::vector<float>;

constexpr char kLibrary[] = "tests/gpu/fake_nccl/libnccl.so.2";
constexpr size_t kElements = 20'000;
constexpr uint32_t kCommunicator = 33;

class FakeCommunicator : public Communicator {
 public:
  Status Start(std::span<const std::shared_ptr<Operation>>) override {
    return Status();
  }
  void InputReady(const std::shared_ptr<Operation>&) override {}
  void InputFailed(const std::shared_ptr<Operation>&, const Status&) override {}
  std::shared_ptr<const ProcessSet> FindSet(uint32_t) const override {
    return nullptr;
  }
  void Progress(const Operation&) override {}
  Status Await(const Operation&, int) override { return Status(); }
  void Leave() override {}
  bool homogeneous() const override { return true; }
  Status SendGpuMemory(const session::GpuMemoryRequest& request, int) override {
    auto reply = session::Make<session::GpuMemoryReply>();
    reply.number = request.number;
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
  void ExpectGpuMessages(int more) override { expected += more; }
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
  FakeCommunicator communicator;
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
      ASSERT_TRUE(Gpu::Open(cuda(), i, &r.gpu).ok());
      const CurrentGpu current(*r.gpu);
      ASSERT_EQ(cuda().cuStreamCreate(&r.stream, cuda::CU_STREAM_NON_BLOCKING),
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
      EXPECT_EQ(cuda().cuStreamSynchronize(r.stream), CUDA_SUCCESS);
      EXPECT_EQ(cuda().cuStreamDestroy(r.stream), CUDA_SUCCESS);
      for (const CUdeviceptr t : r.tensors) cuda().cuMemFree(t);
      r.staging.reset();
    }
    FakeTest::TearDown();
  }

  // Enqueues the write.
  CUdeviceptr OnDevice(Rank& r, const Values& values) {
    const CurrentGpu current(*r.gpu);
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuda().cuMemAlloc(&memory, values.size() * 4), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuMemcpyAsync(memory,
                                   reinterpret_cast<CUdeviceptr>(values.data()),
                                   values.size() * 4, r.stream),
              CUDA_SUCCESS);
    r.tensors.push_back(memory);
    return memory;
  }
  static Values Read(Rank& r, CUdeviceptr memory) {
    const CurrentGpu current(*r.gpu);
    Values out(kElements);
    EXPECT_EQ(cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(out.data()),
                                   memory, out.size() * 4, r.stream),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuStreamSynchronize(r.stream), CUDA_SUCCESS);
    return out;
  }
  std::shared_ptr<Operation> CopyIn(Rank& r, CUdeviceptr input,
                                    CUdeviceptr output) {
    auto op = std::make_shared<Operation>();
    op->name = "x";
    op->slot = 5;
    op->generation = ++generation_ / 2 + 1;
    op->signature.kind = Kind::kAllreduce;
    op->signature.dtype = DType::kFloat32;
    op->signature.op = Op::kSum;
    op->signature.device = Device::kGpu;
    op->signature.dims = 1;
    op->signature.shape[0] = static_cast<int64_t>(kElements);
    op->set = std::make_shared<const ProcessSet>(ProcessSet{0, {0, 1}, {0, 1}});
    op->input = reinterpret_cast<const std::byte*>(input);
    op->output = reinterpret_cast<std::byte*>(output);
    const Status s =
        r.staging->CopyIn(op.get(), r.stream, kElements * 4, kElements * 4);
    EXPECT_TRUE(s.ok()) << s.message();
    return op;
  }
  // As CopyIn(), until the GPU has been announced.
  std::shared_ptr<Operation> Submit(Rank& r, CUdeviceptr input,
                                    CUdeviceptr output) {
    const auto until = steady_clock::now() + seconds(20);
    auto op = CopyIn(r, input, output);
    while (op->gpu_place == kNoGpuPlace && steady_clock::now() < until) {
      --generation_;
      op = CopyIn(r, input, output);
    }
    EXPECT_NE(op->gpu_place, kNoGpuPlace);
    EXPECT_TRUE(op->input_ready);
    return op;
  }
  std::shared_ptr<RankRun> Begin(const std::shared_ptr<Operation>& op) {
    return op->staged->BeginOnRank(kCommunicator, {op.get()});
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
  // What the progress engine does when the run is on the stream.
  static void Finish(const std::shared_ptr<Operation>& op, RankRun& run) {
    const Status s = AwaitEnqueued(run);
    ASSERT_TRUE(s.ok()) << s.message();
    op->staged->ResultOnGpu(0);
    op->done = true;
  }

  Rank ranks_[2];
  uint32_t generation_ = 0;
};

TEST_F(StagingRanksTest, NcclReadsAndWritesTheUsersTensors) {
  for (const CopyOutReturns returns :
       {CopyOutReturns::kWhenDone, CopyOutReturns::kWhenEnqueued}) {
    const Values in[] = {Values(kElements, 1.5f), Values(kElements, 2.0f)};
    CUdeviceptr input[2], output[2];
    std::shared_ptr<Operation> ops[2];
    std::shared_ptr<RankRun> runs[2];
    for (int i = 0; i < 2; ++i) {
      input[i] = OnDevice(ranks_[i], in[i]);
      output[i] = i == 0 ? OnDevice(ranks_[i], in[0]) : input[i];
      ops[i] = Submit(ranks_[i], input[i], output[i]);
    }
    for (int i = 0; i < 2; ++i) runs[i] = Begin(ops[i]);
    if (returns == CopyOutReturns::kWhenDone) {
      for (Rank& r : ranks_) EXPECT_EQ(r.communicator.expected, 1);
      Connect();  // after the runs have begun
    }
    for (int i = 0; i < 2; ++i) Finish(ops[i], *runs[i]);
    for (int i = 0; i < 2; ++i) {
      Rank& r = ranks_[i];
      const Status s = r.staging->CopyOut(*ops[i], r.stream, 0, returns);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(Read(r, output[i]), Values(kElements, 3.5f));
      EXPECT_EQ(r.communicator.expected, 0);
    }
    EXPECT_EQ(Read(ranks_[0], input[0]), in[0]);
  }
}

TEST_F(StagingRanksTest, TheHostGetsTheInputWhenItIsWritten) {
  Rank& r = ranks_[0];
  const Values in(kElements, 1.5f);
  const CUdeviceptr input = OnDevice(r, in);
  const auto op = Submit(r, input, input);
  bool done = false;
  const auto until = steady_clock::now() + seconds(20);
  while (!done && steady_clock::now() < until) {
    ASSERT_TRUE(op->staged->BringToHost(op.get(), &done).ok());
  }
  ASSERT_TRUE(done);
  auto* const values = reinterpret_cast<float*>(op->output);
  EXPECT_EQ(Values(values, values + kElements), in);
  std::fill_n(values, kElements, 7.0f);
  op->done = true;
  ASSERT_TRUE(
      r.staging->CopyOut(*op, r.stream, 0, CopyOutReturns::kWhenDone).ok());
  EXPECT_EQ(Read(r, input), Values(kElements, 7.0f));
}

// Its kernel is on the stream, but the other rank does not come.
TEST_F(StagingRanksTest, TheEndOfTheEpochEndsWhatWaitsForAnotherRank) {
  std::shared_ptr<Operation> ops[2];
  std::shared_ptr<RankRun> runs[2];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) {
      const CUdeviceptr tensor = OnDevice(ranks_[i], Values(kElements, 1.0f));
      ops[i] = Submit(ranks_[i], tensor, tensor);
    }
    if (round == 1) break;
    for (int i = 0; i < 2; ++i) runs[i] = Begin(ops[i]);
    Connect();
    for (int i = 0; i < 2; ++i) Finish(ops[i], *runs[i]);
    for (int i = 0; i < 2; ++i) {
      Rank& r = ranks_[i];
      ASSERT_TRUE(
          r.staging->CopyOut(*ops[i], r.stream, 0, CopyOutReturns::kWhenDone)
              .ok());
    }
  }
  Rank& r = ranks_[0];
  Finish(ops[0], *Begin(ops[0]));
  std::thread ends([&r] {
    r.communicator.EndEpoch(Status(Code::kAborted, "rank 1 was lost"));
  });
  const Status s =
      r.staging->CopyOut(*ops[0], r.stream, 0, CopyOutReturns::kWhenDone);
  ends.join();
  EXPECT_EQ(s.message(), "allreduce 'x': rank 1 was lost");
  EXPECT_EQ(
      r.staging->CopyOut(*ops[0], r.stream, 0, CopyOutReturns::kWhenEnqueued)
          .message(),
      "allreduce 'x': rank 1 was lost");
}

TEST_F(StagingRanksTest, WithoutNcclTheHostHasTheTensors) {
  setenv("MAYPOLE_NCCL_LIBRARY", "none", 1);
  const CUdeviceptr input = OnDevice(ranks_[0], Values(kElements, 1.0f));
  EXPECT_EQ(CopyIn(ranks_[0], input, input)->gpu_place, kNoGpuPlace);
  EXPECT_EQ(CopyIn(ranks_[0], input, input)->gpu_place, kNoGpuPlace);
}

}  // namespace
}  // namespace maypole
