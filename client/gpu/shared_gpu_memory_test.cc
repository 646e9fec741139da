// GPU memory that a rank shares, on the fake driver, with an executor in
// another process. The environment describes the rank's GPUs: `vmm=0`, `ipc=0`.
#include "client/gpu/shared_gpu_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/testing/gpu_memory_executor.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::Gpu;
using cuda::fake::cuda;
using cuda::fake::more;
using Block = SharedGpuMemory::Block;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kGpus[] = "devices=2,memory=512M";
constexpr char kNotOffered[] =
    "the fake driver of this test does not offer it; that of another does";

class SharedGpuMemoryTest : public cuda::fake::FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    ASSERT_TRUE(Gpu::Open(cuda(), 0, &gpu_).ok());
    free_before_ = FreeBytes();
  }
  void TearDown() override {
    End();
    EXPECT_EQ(FreeBytes(), free_before_ - leaked_);
    FakeTest::TearDown();
  }

  // Ends the earlier executor and memory.
  void Start(GpuMemoryMode mode, const std::string& behaviour = "good",
             const std::string& executors_gpus = kGpus,
             int64_t limit = 256 * kMiB) {
    End();
    executor_ = std::make_unique<GpuMemoryExecutor>(behaviour, executors_gpus);
    memory_ = std::make_unique<SharedGpuMemory>(
        cuda(), GpuMemoryOptions{mode, limit},
        [this](const session::GpuMemoryRequest& request, int fd) {
          EXPECT_EQ(request.number, static_cast<uint32_t>(++sent_));
          EXPECT_NE(request.proof, 0u);
          last_ = request;
          return executor_->Send(request, fd);
        });
    executor_->OnReply([m = memory_.get(), this](const auto& reply) {
      m->OnReply(reply);
      replies_.fetch_add(1);
    });
    sent_ = 0;
    replies_ = 0;
  }

  void End() {
    executor_.reset();  // replies come no more
    memory_.reset();
  }

  // Takes a block, at once or when the executor has answered.
  Block TakeSoon(uint64_t bytes) {
    Block block;
    const auto until = steady_clock::now() + seconds(20);
    while (block.place == kNoGpuPlace && steady_clock::now() < until) {
      block = memory().Take(gpu(), bytes);
      if (block.place == kNoGpuPlace) std::this_thread::yield();
    }
    EXPECT_NE(block.place, kNoGpuPlace);
    return block;
  }

  // What the user is told while there is no block.
  std::string NeverTakes(uint64_t bytes, int replies) {
    testing::internal::CaptureStderr();
    const auto until = steady_clock::now() + seconds(20);
    while (replies_.load() < replies && steady_clock::now() < until) {
      EXPECT_EQ(memory().Take(gpu(), bytes).place, kNoGpuPlace);
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(memory().Take(gpu(), bytes).place, kNoGpuPlace);
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(memory().allocated(), 0u);
    return testing::internal::GetCapturedStderr();
  }

  // The executor reads and writes the block.
  void ExpectShared(const Block& block, uint64_t bytes) {
    std::vector<unsigned char> out(bytes, 7);
    EXPECT_EQ(more().cuMemcpyHtoD_v2(block.address, out.data(), bytes),
              CUDA_SUCCESS);
    executor_->TouchAndWait(block.place, bytes);
    EXPECT_EQ(more().cuMemcpyDtoH_v2(out.data(), block.address, bytes),
              CUDA_SUCCESS);
    EXPECT_EQ(out, std::vector<unsigned char>(bytes, 8));
  }

  static size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  static bool Here(const char* option) {
    return std::strstr(getenv("MAYPOLE_FAKE_CUDA"), option) != nullptr;
  }
  static bool HasDescriptors() { return !Here("vmm=0"); }
  static bool HasIpc() { return !Here("ipc=0"); }
  static GpuMemoryMode AnyMode() {
    return HasDescriptors() ? GpuMemoryMode::kDescriptor
                            : GpuMemoryMode::kIpcHandle;
  }

  const Gpu& gpu() const { return *gpu_; }
  SharedGpuMemory& memory() { return *memory_; }
  GpuMemoryExecutor& executor() { return *executor_; }
  session::GpuSharing last_sharing() const {
    return static_cast<session::GpuSharing>(last_.sharing);
  }

  session::GpuMemoryRequest last_;
  int sent_ = 0;
  std::atomic<int> replies_{0};
  size_t leaked_ = 0;

 private:
  const Gpu* gpu_ = nullptr;
  size_t free_before_ = 0;
  std::unique_ptr<GpuMemoryExecutor> executor_;
  std::unique_ptr<SharedGpuMemory> memory_;
};

// The first test, because the user is told only once.
TEST_F(SharedGpuMemoryTest, AllWaysRefusedIsToldOnce) {
  for (int i = 0; i < 2; ++i) {
    Start(GpuMemoryMode::kAuto, "refuse");
    const int ways = HasDescriptors() ? 2 : 1;
    const std::string told = NeverTakes(100, ways);
    if (i == 0) {
      EXPECT_THAT(told, testing::StartsWith("maypole: no memory of GPU-"));
      EXPECT_THAT(told, testing::HasSubstr("by IPC handle: this executor "
                                           "refuses\n"));
      EXPECT_THAT(told, testing::HasSubstr(
                            HasDescriptors()
                                ? "by descriptor: this executor refuses; "
                                : "by descriptor: the GPU has no virtual "));
    } else {
      EXPECT_EQ(told, "");
    }
    EXPECT_EQ(sent_, ways);  // neither is tried again
  }
}

TEST_F(SharedGpuMemoryTest, ByDescriptor) {
  if (!HasDescriptors()) GTEST_SKIP() << kNotOffered;
  Start(GpuMemoryMode::kDescriptor);
  const Block block = TakeSoon(1000);
  EXPECT_EQ(last_sharing(), session::GpuSharing::kDescriptor);
  EXPECT_EQ(block.bytes, 1024u);
  ExpectShared(block, 1000);
  memory().Return(block);
}

TEST_F(SharedGpuMemoryTest, ByIpcHandle) {
  if (!HasIpc()) GTEST_SKIP() << kNotOffered;
  Start(GpuMemoryMode::kIpcHandle);
  const Block block = TakeSoon(1000);
  EXPECT_EQ(last_sharing(), session::GpuSharing::kIpcHandle);
  ExpectShared(block, 1000);
  EXPECT_EQ(FreeBytes(), 512 * kMiB);  // it is the executor's
  memory().Return(block);
}

TEST_F(SharedGpuMemoryTest, AutoTakesTheFirstWayThatWorks) {
  if (!HasIpc()) GTEST_SKIP() << kNotOffered;
  for (const std::string lies : {"", ",vmm=lies"}) {
    Start(GpuMemoryMode::kAuto, "good", kGpus + lies);
    const Block block = TakeSoon(1000);
    EXPECT_EQ(last_sharing(), HasDescriptors() && lies.empty()
                                  ? session::GpuSharing::kDescriptor
                                  : session::GpuSharing::kIpcHandle);
    ExpectShared(block, 1000);
    memory().Return(block);
  }
}

TEST_F(SharedGpuMemoryTest, WithoutAWayThereIsNoMemory) {
  Start(GpuMemoryMode::kAuto, "good", std::string(kGpus) + ",vmm=lies,ipc=0");
  NeverTakes(1000, HasDescriptors() ? 2 : 1);
  Start(GpuMemoryMode::kNone);
  NeverTakes(1000, 0);
  EXPECT_EQ(sent_, 0);
  if (!HasIpc()) {
    Start(GpuMemoryMode::kIpcHandle);
    NeverTakes(1000, 1);
  }
  if (!HasDescriptors()) {
    Start(GpuMemoryMode::kDescriptor);
    NeverTakes(1000, 0);
    EXPECT_EQ(sent_, 0);
  }
}

// For example memory of another GPU with the same number.
TEST_F(SharedGpuMemoryTest, AWrongProofIsNotBelieved) {
  Start(GpuMemoryMode::kAuto, "wrong-proof");
  NeverTakes(1000, HasDescriptors() ? 2 : 1);
}

TEST_F(SharedGpuMemoryTest, ExhaustedMemoryIsAskedForAgainLater) {
  Start(AnyMode(), "exhausted");
  NeverTakes(1000, 1);
  EXPECT_EQ(sent_, 1);
  std::this_thread::sleep_for(SharedGpuMemory::kRetryAfter);
  NeverTakes(1000, 2);
  EXPECT_EQ(sent_, 2);
}

TEST_F(SharedGpuMemoryTest, ASmallerSegmentIfTheGpuIsAlmostFull) {
  if (!HasDescriptors()) GTEST_SKIP() << kNotOffered;
  Start(GpuMemoryMode::kDescriptor);
  const CUdeviceptr filler = Alloc(504 * kMiB);
  EXPECT_EQ(memory().Take(gpu(), 20 * kMiB).place, kNoGpuPlace);
  EXPECT_EQ(sent_, 0);
  std::this_thread::sleep_for(SharedGpuMemory::kRetryAfter);
  const Block block = TakeSoon(3 * kMiB);
  EXPECT_EQ(memory().allocated(), 4 * kMiB);
  memory().Return(block);
  EXPECT_EQ(cuda().cuMemFree(filler), CUDA_SUCCESS);
}

TEST_F(SharedGpuMemoryTest, WithoutAnAnswerItOnlyGoesWithout) {
  Start(AnyMode(), "silent");
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(memory().Take(gpu(), 1000).place, kNoGpuPlace);
  }
  EXPECT_EQ(sent_, 1);
  auto unasked = session::Make<session::GpuMemoryReply>();
  unasked.number = 77;
  memory().OnReply(unasked);
  EXPECT_EQ(memory().Take(gpu(), 1000).place, kNoGpuPlace);
}

TEST_F(SharedGpuMemoryTest, GrowsUpToItsLimit) {
  if (!HasDescriptors() && !HasIpc()) GTEST_SKIP() << kNotOffered;
  Start(AnyMode());
  std::vector<Block> blocks = {TakeSoon(1)};
  EXPECT_EQ(memory().allocated(), 64 * kMiB);
  blocks.push_back(TakeSoon(100 * kMiB));  // more than the step
  EXPECT_EQ(memory().allocated(), 166 * kMiB);
  blocks.push_back(TakeSoon(65 * kMiB));  // what is left of the limit
  EXPECT_EQ(memory().allocated(), 256 * kMiB);
  EXPECT_EQ(memory().Take(gpu(), 65 * kMiB).place, kNoGpuPlace);
  EXPECT_EQ(sent_, 3);
  for (const Block& block : blocks) memory().Return(block);
  const Block again = memory().Take(gpu(), 65 * kMiB);
  EXPECT_EQ(again.place, blocks[1].place);  // the first that fits
  memory().Return(again);

  Start(AnyMode(), "good", kGpus, 0);
  NeverTakes(1, 0);
  Start(AnyMode(), "good", kGpus, -1);  // an eighth
  memory().Return(TakeSoon(1));
  EXPECT_EQ(memory().allocated(), 64 * kMiB);
  EXPECT_EQ(memory().Take(gpu(), 64 * kMiB).place, kNoGpuPlace);
}

TEST_F(SharedGpuMemoryTest, FragmentsJoinAgain) {
  Start(AnyMode(), "good", kGpus, 64 * kMiB);
  std::vector<Block> blocks = {TakeSoon(kMiB)};
  while (blocks.back().place != kNoGpuPlace) {
    blocks.push_back(memory().Take(gpu(), kMiB));
  }
  blocks.pop_back();
  EXPECT_EQ(blocks.size(), 63u);  // the proof takes a part of the 64th
  for (size_t i = 0; i < blocks.size(); i += 2) memory().Return(blocks[i]);
  EXPECT_EQ(memory().Take(gpu(), 2 * kMiB).place, kNoGpuPlace);
  for (size_t i = 1; i < blocks.size(); i += 2) memory().Return(blocks[i]);
  const Block all = memory().Take(gpu(), 64 * kMiB - kGpuPlaceAlignment);
  EXPECT_EQ(UnpackGpuPlace(all.place).offset, kGpuPlaceAlignment);
  memory().Return(all);
}

TEST_F(SharedGpuMemoryTest, PlacesOfUsersTensors) {
  Start(AnyMode());
  const CUdeviceptr tensor = memory().Allocate(gpu(), 10000);  // waits for it
  ASSERT_NE(tensor, 0u);
  EXPECT_EQ(tensor % kGpuPlaceAlignment, 0u);
  const GpuPlace place = UnpackGpuPlace(memory().PlaceOf(tensor, 10000));
  EXPECT_EQ(place, (GpuPlace{1, 5, kGpuPlaceAlignment}));
  EXPECT_EQ(UnpackGpuPlace(memory().PlaceOf(tensor + 512, 100)),
            (GpuPlace{1, 5, kGpuPlaceAlignment + 512}));
  EXPECT_EQ(memory().PlaceOf(tensor + 4, 100), kNoGpuPlace);
  EXPECT_EQ(memory().PlaceOf(tensor - kGpuPlaceAlignment, 8), kNoGpuPlace);
  EXPECT_EQ(memory().PlaceOf(tensor, 64 * kMiB), kNoGpuPlace);
  EXPECT_EQ(memory().PlaceOf(tensor + 64 * kMiB, 8), kNoGpuPlace);
  const CUdeviceptr other = Alloc(64);
  EXPECT_EQ(memory().PlaceOf(other, 64), kNoGpuPlace);
  EXPECT_EQ(cuda().cuMemFree(other), CUDA_SUCCESS);
  memory().Leave();
  EXPECT_EQ(memory().PlaceOf(tensor, 10000), kNoGpuPlace);
  EXPECT_EQ(memory().Allocate(gpu(), 1), 0u);
  memory().Free(tensor);
  memory().Free(tensor + 1);  // not one of its tensors: nothing happens
}

TEST_F(SharedGpuMemoryTest, AfterLeaveNothingIsSent) {
  Start(AnyMode());
  memory().Leave();
  EXPECT_EQ(memory().Take(gpu(), 1).place, kNoGpuPlace);
  EXPECT_EQ(sent_, 0);
}

TEST_F(SharedGpuMemoryTest, WhatIsNotReturnedStaysMapped) {
  if (!HasDescriptors()) GTEST_SKIP() << kNotOffered;
  Start(GpuMemoryMode::kDescriptor);
  const Block block = TakeSoon(1000);
  Delay(stream(), 50);
  EXPECT_EQ(
      cuda().cuMemcpyAsync(block.address, block.address + 512, 256, stream()),
      CUDA_SUCCESS);
  Start(GpuMemoryMode::kNone);  // the fake aborts if the memory is unmapped
  leaked_ = 64 * kMiB;
}

TEST_F(SharedGpuMemoryTest, OtherGpusHaveTheirOwn) {
  const Gpu* second = nullptr;
  ASSERT_TRUE(Gpu::Open(cuda(), 1, &second).ok());
  Start(AnyMode());
  memory().Return(TakeSoon(1000));
  EXPECT_EQ(memory().Take(*second, 1000).place, kNoGpuPlace);
  EXPECT_EQ(sent_, 2);
  cuda::CUuuid uuid;
  ASSERT_EQ(cuda().cuDeviceGetUuid(&uuid, 1), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(last_.uuid, uuid.bytes, 16), 0);
}

TEST_F(SharedGpuMemoryTest, ManyThreads) {
  Start(AnyMode());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const Block block = memory().Take(gpu(), 1000u * (t + 1) + i);
        if (block.place != kNoGpuPlace) {
          EXPECT_EQ(memory().PlaceOf(block.address, block.bytes), block.place);
        }
        memory().Return(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace maypole
