#include "worker/executor/gpu_loads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace maypole::worker {
namespace {

using std::chrono::steady_clock;

constexpr char kFake[] = "tests/gpu/fake/libnvidia-ml.so.1";

// See tests/gpu/fake/nvml.cc for what the first byte means.
GpuUuid Gpu(uint8_t first) {
  GpuUuid uuid{};
  uuid.fill(7);
  uuid[0] = first;
  return uuid;
}

// Calls Look() until there is an answer, and returns it.
std::vector<GpuLoads::Load> Await(GpuLoads* loads,
                                  const std::vector<GpuUuid>& gpus) {
  const auto until = steady_clock::now() + std::chrono::seconds(30);
  std::vector<GpuLoads::Load> found;
  while (found.empty() && steady_clock::now() < until) {
    found = loads->Look(gpus);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return found;
}

TEST(GpuLoadsTest, OfTheGpusThatNvmlKnows) {
  GpuLoads loads(kFake);
  EXPECT_TRUE(loads.Look({Gpu(1), Gpu(0), Gpu(0xf0)}).empty());
  const auto found = Await(&loads, {Gpu(1), Gpu(0), Gpu(0xf0)});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].uuid, Gpu(1));
  EXPECT_EQ(found[0].used_bytes, 30'000u);
  EXPECT_EQ(found[0].total_bytes, 80'000u);
  EXPECT_EQ(found[0].busy_percent, 73u);
  EXPECT_EQ(found[1].uuid, Gpu(0xf0));
  EXPECT_EQ(found[1].used_bytes, 30'000u);
  EXPECT_EQ(found[1].busy_percent, std::nullopt);
}

TEST(GpuLoadsTest, AJobWithoutGpusHasNone) {
  GpuLoads loads(kFake);
  EXPECT_TRUE(loads.Look({}).empty());
}

TEST(GpuLoadsTest, WithoutNvmlThereAreNone) {
  GpuLoads loads("libnvidia-ml.so.of-no-driver");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(loads.Look({Gpu(1)}).empty());
}

// Neither Look() nor the destructor waits.
TEST(GpuLoadsTest, AGpuThatHangsHoldsUpNobody) {
  const auto began = steady_clock::now();
  {
    GpuLoads loads(kFake);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(loads.Look({Gpu(0xff)}).empty());
  }
  EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(20));
}

}  // namespace
}  // namespace maypole::worker
