// What a GpuRunner refuses, and what it does when driver calls fail.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

#include "common/gpu/kernels/kernels.h"
#include "common/gpu/runner/gpu_kernels.h"
#include "common/gpu/runner/gpu_runner.h"
#include "common/gpu/runner/testing/gpu_runner_fixture.h"
#include "common/limits.h"

namespace maypole {
namespace {

using cuda::fake::cuda;
using session::GpuSharing;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class GpuErrorsTest : public GpuRunnerFixture {
 protected:
  // The text of the error with which memory 1 of rank 3 is refused.
  std::string Refusal(const session::GpuMemoryRequest& request,
                      Fd descriptor = Fd()) {
    const auto opened = OpenNow({3, 1}, request, std::move(descriptor));
    EXPECT_FALSE(opened.ok());
    const std::string text(opened.status().message());
    EXPECT_THAT(text, AllOf(HasSubstr("GPU memory 1 of local rank 3: "),
                            Not(HasSubstr("\n"))));
    EXPECT_LE(text.size(), kMaxErrorBytes);
    return text;
  }
  static session::GpuMemoryRequest Described(uint64_t bytes) {
    return RequestOf(GpuSharing::kDescriptor, bytes, 1, UuidOf(0));
  }
  static session::GpuMemoryRequest ByHandle(uint64_t bytes) {
    return RequestOf(GpuSharing::kIpcHandle, bytes, 1, UuidOf(0));
  }
};

// --- Requests that cannot be right -------------------------------------------

TEST_F(GpuErrorsTest, ForgedDescriptors) {
  EXPECT_THAT(Refusal(Described(kGranularity)),
              HasSubstr("its descriptor did not come"));
  Fd ordinary(memfd_create("x", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(ordinary.get(), kGranularity), 0);
  EXPECT_THAT(Refusal(Described(kGranularity), std::move(ordinary)),
              HasSubstr("cuMemImportFromShareableHandle: "));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd other_end(ends[1]);
  EXPECT_THAT(Refusal(Described(kGranularity), Fd(ends[0])),
              HasSubstr("cuMemImportFromShareableHandle: "));
}

TEST_F(GpuErrorsTest, WrongSizes) {
  const RankMemory memory = Create(2 * kGranularity);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{7}, ~uint64_t{0},
                               kMaxGpuMemoryBytes + kGranularity}) {
    EXPECT_THAT(Refusal(Described(bytes), memory.Export()),
                HasSubstr("its size must be from 8 to "));
    EXPECT_THAT(Refusal(ByHandle(bytes)),
                HasSubstr("its size must be from 8 to "));
  }
  EXPECT_THAT(Refusal(Described(kGranularity + 8), memory.Export()),
              HasSubstr("its size must be a multiple of 2097152 bytes"));
  EXPECT_THAT(
      Refusal(Described(3 * kGranularity), memory.Export()),
      AllOf(HasSubstr("cuMemMap: "), HasSubstr("for a size of 6291456 bytes")));
  EXPECT_THAT(Refusal(ByHandle(uint64_t{1} << 36)), HasSubstr("cuMemAlloc: "));
  EXPECT_TRUE(OpenNow({3, 1}, memory).ok());
}

TEST_F(GpuErrorsTest, UnknownGpu) {
  cuda::CUuuid uuid = {};
  std::memset(uuid.bytes, 0xab, sizeof(uuid.bytes));
  EXPECT_EQ(Refusal(RequestOf(GpuSharing::kIpcHandle, kGranularity, 1, uuid)),
            "GPU memory 1 of local rank 3: the executor sees no GPU "
            "GPU-abababab-abab-abab-abab-abababababab among its 2; "
            "CUDA_VISIBLE_DEVICES of the agent may hide it");
}

TEST_F(GpuErrorsTest, MemoryOfAnotherGpu) {
  cuda::CUcontext other = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&other, 1), cuda::CUDA_SUCCESS);
  EXPECT_THAT(
      Refusal(Described(kGranularity), Create(kGranularity, 1).Export()),
      HasSubstr("it is not on the GPU that the rank named, GPU-"));
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), cuda::CUDA_SUCCESS);
}

TEST_F(GpuErrorsTest, UnknownWayAndUsedNumber) {
  EXPECT_THAT(Refusal(RequestOf(static_cast<GpuSharing>(7), kGranularity, 1,
                                UuidOf(0))),
              HasSubstr("there is no way 7 to share it"));
  const RankMemory memory = Create();
  ASSERT_TRUE(OpenNow({3, 1}, memory).ok());
  EXPECT_THAT(Refusal(Described(kGranularity), memory.Export()),
              HasSubstr("it is open"));
  runner().Run(SumOf({{3, 1}}, 16));
  EXPECT_TRUE(Ended(0).ok());
}

TEST_F(GpuErrorsTest, ReductionsThatDoNotFit) {
  ASSERT_TRUE(OpenNow({3, 1}, Create()).ok());
  uint32_t slot = 0;
  const auto refusal = [&](GpuOperation o) {
    o.slot = ++slot;
    runner().Run({.operations = {o}});
    return std::string(Ended(slot).message());
  };
  const GpuOperation good = SumOf({{3, 1}}, kGranularity / 4).operations[0];
  EXPECT_EQ(refusal(good), "");
  GpuOperation bad = good;
  bad.elements += 1;
  EXPECT_THAT(refusal(bad), HasSubstr("the tensor does not lie in it"));
  bad = good;
  bad.tensors[0].offset = ~uint64_t{0};
  EXPECT_THAT(refusal(bad), HasSubstr("the tensor does not lie in it"));
  bad = good;
  bad.tensors[0].gpu = 1;
  EXPECT_EQ(refusal(bad), "no memory of the operation's GPU is open");
  bad = good;
  bad.tensors[0].memory = {};  // a rank claims an address of this process
  EXPECT_THAT(refusal(bad), HasSubstr("it is not open"));
  bad = good;
  bad.elements = ~uint64_t{0};  // see check_operation_test.cc
  EXPECT_THAT(refusal(bad), HasSubstr("no GPU can execute this allreduce"));
}

// --- Calls that fail ---------------------------------------------------------

TEST_F(GpuErrorsTest, AFailedLaunchConcernsOnlyItself) {
  const RankMemory memory = Create();
  hooks().launch_error = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_THAT(Refusal(Described(kGranularity), memory.Export()),
              HasSubstr("cuLaunchKernel: "));
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
  ASSERT_TRUE(OpenNow({3, 1}, memory).ok());
  hooks().launch_error = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  runner().Run(SumOf({{3, 1}}, 16, 0));
  EXPECT_THAT(std::string(Ended(0).message()), HasSubstr("cuLaunchKernel: "));
  runner().Run(SumOf({{3, 1}}, 16, 1));
  EXPECT_TRUE(Ended(1).ok());
}

// The GPU still works when the error is seen: its memory must stay.
TEST_F(GpuErrorsTest, AfterAnErrorOfTheGpuAllFailsWithItsText) {
  const RankMemory memory = Create();
  ASSERT_TRUE(OpenNow({3, 1}, memory).ok());
  hooks().Hold();
  for (uint32_t slot = 0; slot < 3; ++slot) {
    runner().Run(SumOf({{3, 1}}, 16, slot));
  }
  EXPECT_TRUE(Becomes([] { return hooks().launches == 4; }));
  hooks().query_error = cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  const Status error = Ended(0);
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("cuEventQuery: "), HasSubstr("700")));
  EXPECT_EQ(Ended(1).message(), error.message());
  EXPECT_EQ(Ended(2).message(), error.message());
  runner().Run(SumOf({{3, 1}}, 16, 3));
  EXPECT_EQ(Ended(3).message(), error.message());
  EXPECT_THAT(EndedSlots(), testing::ElementsAre(0, 1, 2, 3));
  runner().Close(3);
  EXPECT_THAT(Refusal(Described(kGranularity), memory.Export()),
              HasSubstr(std::string(error.message())));
  EXPECT_EQ(hooks().launches, 4);
  EXPECT_EQ(hooks().mapped, 3);  // the rank's own, and two of the runner
  hooks().Release();
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
}

TEST_F(GpuErrorsTest, WorkWithoutAnEventKeepsItsMemory) {
  const RankMemory memory = Create();
  ASSERT_TRUE(OpenNow({3, 1}, memory).ok());
  hooks().Hold();
  hooks().record_error = cuda::CUDA_ERROR_LAUNCH_FAILED;
  runner().Run(SumOf({{3, 1}}, 16, 0));
  EXPECT_THAT(std::string(Ended(0).message()), HasSubstr("cuEventRecord: "));
  runner().Close(3);
  runner().Run(SumOf({{3, 1}}, 16, 1));
  EXPECT_THAT(std::string(Ended(1).message()), HasSubstr("it is not open"));
  EXPECT_EQ(hooks().mapped, 2);
  hooks().Release();
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
}

TEST_F(GpuErrorsTest, AnErrorWhileTheProofIsWritten) {
  const RankMemory memory = Create();
  hooks().query_error = cuda::CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_THAT(Refusal(Described(kGranularity), memory.Export()),
              HasSubstr("cuEventQuery: "));
  EXPECT_TRUE(Becomes([] { return hooks().mapped == 1; }));
}

// --- Kernels -----------------------------------------------------------------

// No other test here uses GPU 1: known kernels are not looked up again.
TEST_F(GpuErrorsTest, ABuildWithoutKernels) {
  hooks().get_function_error = cuda::CUDA_ERROR_NOT_FOUND;
  EXPECT_EQ(
      Refusal(RequestOf(GpuSharing::kIpcHandle, kGranularity, 1, UuidOf(1))),
      "GPU memory 1 of local rank 3: this build has no GPU kernels (it "
      "was built without CUDA's nvcc)");
  EXPECT_EQ(hooks().allocated, 0);
}

TEST_F(GpuErrorsTest, AnImageThatIsRefusedIsFollowedByTheNext) {
  const cuda::Gpu* gpu = nullptr;
  ASSERT_TRUE(cuda::Gpu::Open(cuda(), 0, &gpu).ok());
  constexpr std::string_view kGarbage = "garbage";
  constexpr char kPtx[] = ".version 8.0\n";
  const auto image = [](std::string_view text) {
    return std::as_bytes(std::span(text));
  };
  const std::array images = {image(kGarbage), image(kPtx)};
  EXPECT_TRUE(LoadImage(*gpu, images).ok());
  EXPECT_THAT(
      std::string(
          LoadImage(*gpu, std::span(images).first(1)).status().message()),
      HasSubstr("cuModuleLoadData: "));
  EXPECT_FALSE(LoadImage(*gpu, {}).ok());
}

}  // namespace
}  // namespace maypole
