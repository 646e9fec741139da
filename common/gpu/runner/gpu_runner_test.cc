// GpuRunner on the fake driver. The environment's seed makes the GPU's work
// late (tests/gpu/fake/config.h).
#include "common/gpu/runner/gpu_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "common/gpu/driver.h"
#include "common/gpu/runner/gpu_queue.h"
#include "common/gpu/runner/testing/gpu_runner_fixture.h"
#include "common/reduce/reduce.h"

namespace maypole {
namespace {

using cuda::fake::cuda;
using session::GpuSharing;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

class GpuRunnerTest : public GpuRunnerFixture {};

// --- Results -----------------------------------------------------------------

struct Case {
  DType dtype;
  Op op;
  uint64_t elements;
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
};

const Case kCases[] = {
    {DType::kFloat32, Op::kSum, 1},
    {DType::kFloat32, Op::kSum, 70001, 0.3, 1, 1.7},
    {DType::kFloat32, Op::kAverage, 4096, 1.0, 3},
    {DType::kFloat32, Op::kMin, 999},
    {DType::kBfloat16, Op::kSum, 5000},
    {DType::kBfloat16, Op::kAverage, 777, 0.5, 4, 3.0},
    {DType::kBfloat16, Op::kMax, 1024},
    {DType::kInt32, Op::kSum, 30000},
    {DType::kInt32, Op::kAverage, 65, 1.0, 3},
    {DType::kInt32, Op::kMin, 65},
    {DType::kInt32, Op::kMax, 1},
};

// Finite, of both signs and various sizes.
Bytes SomeValues(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-9.0f, 9.0f);
  Bytes bytes(c.elements * SizeOf(c.dtype));
  for (uint64_t i = 0; i < c.elements; ++i) {
    std::byte* const to = bytes.data() + i * SizeOf(c.dtype);
    const float f = uniform(random);
    const auto n = static_cast<int32_t>(random());
    const uint16_t b = FloatToBfloat16(f);
    const void* from = &n;
    if (c.dtype == DType::kFloat32) from = &f;
    if (c.dtype == DType::kBfloat16) from = &b;
    std::memcpy(to, from, SizeOf(c.dtype));
  }
  return bytes;
}

Bytes OnCpu(const Case& c, std::vector<Bytes> inputs) {
  std::vector<const std::byte*> addresses;
  for (Bytes& input : inputs) {
    if (c.prescale != 1.0) {
      Scale(c.dtype, input.data(), input.data(), c.elements, c.prescale);
    }
    addresses.push_back(input.data());
  }
  Bytes output(inputs[0].size());
  Reduce(c.dtype, c.op, addresses, output.data(), c.elements,
         {.divisor = c.divisor, .scale = c.postscale});
  return output;
}

TEST_F(GpuRunnerTest, GivesTheBitsOfTheCpu) {
  constexpr uint64_t kApart = 512 << 10;  // of two cases' tensors
  uint32_t slot = 0;
  std::vector<RankMemory> memories;
  for (uint32_t local = 0; local < 4; ++local) {
    memories.push_back(Create(4 * kGranularity));
    const auto opened = OpenNow({local, 1}, memories.back());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ(opened->gpu, 0u);
  }
  for (const uint32_t ranks : {1, 2, 4}) {
    const uint32_t first_slot = slot;
    std::vector<Bytes> wanted;
    for (const Case& c : kCases) {
      const uint64_t offset = (slot - first_slot) * kApart;
      GpuOperation r;
      r.slot = slot++;
      r.dtype = c.dtype;
      r.op = c.op;
      r.elements = c.elements;
      r.prescale = c.prescale;
      r.divisor = c.divisor;
      r.postscale = c.postscale;
      std::vector<Bytes> inputs;
      for (uint32_t local = 0; local < ranks; ++local) {
        inputs.push_back(SomeValues(c, 10 * slot + local));
        memories[local].Write(offset, inputs.back());
        r.tensors.push_back({{local, 1}, offset, 0});
      }
      wanted.push_back(OnCpu(c, inputs));
      runner().Run({.operations = {r}});
    }
    for (uint32_t i = first_slot; i < slot; ++i) {
      const Status s = Ended(i);
      ASSERT_TRUE(s.ok()) << s.message();
      const Bytes& want = wanted[i - first_slot];
      for (uint32_t local = 0; local < ranks; ++local) {
        EXPECT_EQ(memories[local].Read((i - first_slot) * kApart, want.size()),
                  want)
            << "case " << i - first_slot << " of " << ranks << " ranks";
      }
    }
  }
  std::vector<uint32_t> slots(slot);
  std::iota(slots.begin(), slots.end(), 0);
  EXPECT_EQ(EndedSlots(), slots);
}

TEST_F(GpuRunnerTest, TheRankSeesTheProof) {
  const RankMemory memory = Create();
  constexpr uint64_t kProof = 0x123456789abcdef;
  ASSERT_TRUE(OpenNow({0, 1}, memory, kProof).ok());
  uint64_t word = 0;
  std::memcpy(&word, memory.Read(0, sizeof(word)).data(), sizeof(word));
  EXPECT_EQ(word, kProof);
}

TEST_F(GpuRunnerTest, NumbersGpusAsTheDriverDoes) {
  cuda::CUcontext other = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&other, 1), cuda::CUDA_SUCCESS);
  const RankMemory on_1 = Create(kGranularity, 1), on_0 = Create();
  const RankMemory also_on_0 = Create();
  EXPECT_EQ(OpenNow({0, 1}, on_1)->gpu, 1u);
  EXPECT_EQ(OpenNow({0, 2}, on_0)->gpu, 0u);
  EXPECT_EQ(OpenNow({1, 1}, also_on_0)->gpu, 0u);
  runner().Run(SumOf({{0, 2}, {0, 1}}, 16, 0));
  EXPECT_EQ(Ended(0).message(),
            "GPU memory 1 of local rank 0: the tensor does not lie in it");
  runner().Run(SumOf({{0, 2}, {1, 1}}, 16, 1));
  EXPECT_TRUE(Ended(1).ok());
  DestroyRunner();
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), cuda::CUDA_SUCCESS);
}

// --- Memory is given back ----------------------------------------------------

TEST_F(GpuRunnerTest, CloseGivesBackWhenTheReductionHasEnded) {
  const RankMemory a = Create(), b = Create();
  ASSERT_TRUE(OpenNow({0, 1}, a).ok());
  ASSERT_TRUE(OpenNow({1, 1}, b).ok());
  EXPECT_EQ(hooks().mapped, 4);
  hooks().Hold();
  runner().Run(SumOf({{0, 1}, {1, 1}}, 100, 0));
  runner().Close(1);
  runner().Run(SumOf({{0, 1}, {1, 1}}, 100, 1));
  EXPECT_EQ(Ended(1).message(), "GPU memory 1 of local rank 1: it is not open");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(hooks().mapped, 4);
  hooks().Release();
  EXPECT_TRUE(Ended(0).ok());
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 3; }));
  runner().Run(SumOf({{0, 1}}, 100, 2));
  EXPECT_TRUE(Ended(2).ok());
  // The number may be used again.
  EXPECT_TRUE(OpenNow({1, 1}, b).ok());
}

TEST_F(GpuRunnerTest, CloseBeforeTheProofIsWritten) {
  const RankMemory a = Create();
  hooks().Hold();
  runner().Open({0, 1},
                RequestOf(GpuSharing::kDescriptor, a.bytes, 1, UuidOf(0)),
                a.Export());
  runner().Close(0);
  EXPECT_TRUE(Becomes([] { return hooks().launches == 1; }));
  EXPECT_FALSE(Answered({0, 1}));
  hooks().Release();
  EXPECT_EQ(Answer({0, 1}).status().message(),
            "GPU memory 1 of local rank 0: the rank has left");
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
}

// cuMemFree() waits for the GPU, so it must not be called while one works.
TEST_F(GpuRunnerTest, FreesItsOwnMemoryWhenTheGpuIsIdle) {
  const RankMemory a = Create();
  ASSERT_TRUE(OpenNow({0, 1}, a).ok());
  const auto request = RequestOf(GpuSharing::kIpcHandle, 1000, 1, UuidOf(0));
  const auto opened = OpenNow({1, 1}, request, Fd());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const uint8_t none[64] = {};
  EXPECT_NE(std::memcmp(opened->ipc_handle, none, sizeof(none)), 0);
  EXPECT_EQ(hooks().allocated, 1);
  hooks().Hold();
  runner().Run(SumOf({{0, 1}}, 100, 0));
  runner().Close(1);
  // The thread continues.
  runner().Run(SumOf({{1, 1}}, 100, 1));
  EXPECT_FALSE(Ended(1).ok());
  EXPECT_EQ(hooks().allocated, 1);
  hooks().Release();
  EXPECT_TRUE(Ended(0).ok());
  EXPECT_TRUE(Becomes([] { return hooks().allocated == 0; }));
}

// --- The thread --------------------------------------------------------------

TEST_F(GpuRunnerTest, NothingIsLaunchedThatWouldWaitForTheGpu) {
  constexpr uint32_t kReductions = 3 * GpuQueue::kMostInFlight;
  ASSERT_TRUE(OpenNow({0, 1}, Create()).ok());
  hooks().Hold();
  for (uint32_t i = 0; i < kReductions; ++i) {
    runner().Run(SumOf({{0, 1}}, 16, i));
  }
  const int most = 1 + static_cast<int>(GpuQueue::kMostInFlight);
  EXPECT_TRUE(Becomes([=] { return hooks().launches == most; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(hooks().launches, most);
  hooks().Release();
  for (uint32_t i = 0; i < kReductions; ++i) EXPECT_TRUE(Ended(i).ok());
  std::vector<uint32_t> slots(kReductions);
  std::iota(slots.begin(), slots.end(), 0);
  EXPECT_EQ(EndedSlots(), slots);
}

TEST_F(GpuRunnerTest, EventsAreUsedAgain) {
  ASSERT_TRUE(OpenNow({0, 1}, Create()).ok());
  for (uint32_t i = 0; i < 20; ++i) {
    runner().Run(SumOf({{0, 1}}, 16, i));
    EXPECT_TRUE(Ended(i).ok());
  }
  EXPECT_EQ(hooks().events, 1);
}

TEST_F(GpuRunnerTest, WithoutMemoryThereIsNoThread) {
  runner().Close(0);
  runner().Run(SumOf({{0, 1}}, 16, 0));
  EXPECT_EQ(EndedSlots(), std::vector<uint32_t>{0});
  EXPECT_EQ(Ended(0).message(), "no GPU memory is open");
}

TEST_F(GpuRunnerTest, TheDestructorWaitsForWorkThatEndsSoon) {
  ASSERT_TRUE(OpenNow({0, 1}, Create()).ok());
  for (uint32_t i = 0; i < 20; ++i) {
    runner().Run(SumOf({{0, 1}}, 100000, i));
  }
  DestroyRunner();
  EXPECT_EQ(hooks().mapped, 1);
  EXPECT_EQ(hooks().streams, 0);
}

TEST_F(GpuRunnerTest, TheDestructorDoesNotWaitForALateGpu) {
  ASSERT_TRUE(OpenNow({0, 1}, Create()).ok());
  const auto own = RequestOf(GpuSharing::kIpcHandle, 1000, 1, UuidOf(0));
  ASSERT_TRUE(OpenNow({1, 1}, own, Fd()).ok());
  hooks().Hold();
  runner().Run(SumOf({{0, 1}}, 100, 0));
  EXPECT_TRUE(Becomes([] { return hooks().launches == 3; }));
  const auto begin = Clock::now();
  DestroyRunner();
  const auto took = Clock::now() - begin;
  EXPECT_GE(took, GpuRunner::kMostWait);
  EXPECT_LT(took, GpuRunner::kMostWait * 5);
  EXPECT_EQ(hooks().mapped, 2);  // one is the rank's
  EXPECT_EQ(hooks().allocated, 1);
  hooks().Release();
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
  EXPECT_TRUE(Becomes([] { return hooks().streams == 0; }));
  EXPECT_THAT(EndedSlots(), testing::IsEmpty());
}

// The next epoch must not wait for it either.
TEST_F(GpuRunnerTest, ALateGpuDoesNotHinderTheNextRunner) {
  const auto own = RequestOf(GpuSharing::kIpcHandle, 1000, 1, UuidOf(0));
  ASSERT_TRUE(OpenNow({0, 1}, own, Fd()).ok());
  hooks().Hold();
  runner().Run(SumOf({{0, 1}}, 100, 0));
  EXPECT_TRUE(Becomes([] { return hooks().launches == 2; }));
  NewRunner();
  hooks().HoldNoMore();
  ASSERT_TRUE(OpenNow({0, 1}, own, Fd()).ok());
  ASSERT_TRUE(OpenNow({1, 1}, own, Fd()).ok());
  EXPECT_EQ(hooks().allocated, 3);
  runner().Close(0);
  runner().Run(SumOf({{1, 1}}, 100, 1));
  EXPECT_TRUE(Ended(1).ok());
  EXPECT_EQ(hooks().allocated, 3);
  hooks().Release();
  EXPECT_TRUE(Becomes([] { return hooks().allocated == 1; }));
}

}  // namespace
}  // namespace maypole
