// A build without kernels: memory of this process, one rank on each GPU.
// Operations that need no kernel run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/gpu/runner/testing/collective_fixture.h"

namespace maypole {
namespace {

class NoKernelsTest : public CollectiveFixture {
 protected:
  void SetUp() override {
    CollectiveFixture::SetUp();
    hooks().get_function_error = cuda::CUDA_ERROR_NOT_FOUND;
    MakeRanks(/*per_gpu=*/1);
    for (uint32_t gpu = 0; gpu < kGpus; ++gpu) {
      const cuda::CUuuid uuid = UuidOf(static_cast<int>(gpu));
      uint8_t bytes[16];
      std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), bytes);
      runner().OpenOwn(bytes);
      const auto opened = Answer({});
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      ASSERT_EQ(opened->gpu, gpu);
    }
    Connect(1);
  }
  // Tensors are addresses.
  GpuOperation Own(GpuOperation o) {
    for (GpuTensor& t : o.tensors) {
      const uint64_t address = memory(t.memory.local).address;
      t.memory = {};
      t.offset += address;
      if (t.result != kInPlace) t.result += address;
    }
    return o;
  }
  Status Run(const KindCase& k, uint32_t slot) {
    WriteInputs(k, slot);
    runner().Run(RunOf(1, Own(OperationOf(k, slot, slot))));
    return Ended(slot);
  }
};

TEST_F(NoKernelsTest, AllKinds) {
  uint32_t slot = 0;
  for (const Kind kind : kKindsOfGpus) {
    for (const Shape& shape : kShapes) {
      KindCase k = MakeKind(kind, shape, {0, 1}, 1 + slot);
      k.c = {.elements = k.c.elements};
      if (Reduces(kind) && slot % 2 == 0) {
        k.c.op = Op::kAverage;
        k.c.divisor = kGpus;
      }
      const Status s = Run(k, slot);
      ASSERT_TRUE(s.ok()) << s.message() << " of " << Name(kind);
      ExpectResults(k, slot++);
    }
  }
  EXPECT_EQ(hooks().launches, 0);
}

TEST_F(NoKernelsTest, WhatNeedsOneSaysSo) {
  KindCase k = MakeKind(Kind::kAllreduce, {}, {0, 1}, 1);
  k.c = {.elements = 100, .prescale = 0.5};
  EXPECT_EQ(Run(k, 0).message(),
            "this build has no GPU kernels (it was built without "
            "CUDA's nvcc)");
  k.c = {.elements = 100};
  EXPECT_TRUE(Run(k, 1).ok());
  ExpectResults(k, 1);
}

// It is not shared: ranks cannot see the proof.
TEST_F(NoKernelsTest, MemoryIsNotShared) {
  EXPECT_THAT(std::string(OpenNow({0, 1}, memory(0)).status().message()),
              testing::HasSubstr("this build has no GPU kernels"));
}

// Other ranks' numbers are not addresses.
TEST_F(NoKernelsTest, OnlyNumber0) {
  const KindCase k = MakeKind(Kind::kAllreduce, {}, {0, 1}, 1);
  GpuOperation o = Own(OperationOf(k, 0, 0));
  o.tensors[1].memory.number = 1;
  runner().Run(RunOf(1, o));
  EXPECT_EQ(Ended(0).message(), "GPU memory 1 of local rank 0: it is not open");
}

}  // namespace
}  // namespace maypole
