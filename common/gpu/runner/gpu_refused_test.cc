// GPUs or drivers that lack something: the environment configures the fake
// driver so, and has the text with which memory must be refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <string>

#include "common/gpu/runner/testing/gpu_runner_fixture.h"

namespace maypole {
namespace {

using session::GpuSharing;

class GpuRefusedTest : public GpuRunnerFixture {};

TEST_F(GpuRefusedTest, WithAnErrorOfOneLine) {
  const bool by_handle = std::string(std::getenv("BY_HANDLE")) == "1";
  const auto request =
      RequestOf(by_handle ? GpuSharing::kIpcHandle : GpuSharing::kDescriptor,
                kGranularity, 1, UuidOf(0));
  Fd descriptor;
  if (!by_handle) descriptor = Fd(memfd_create("x", MFD_CLOEXEC));
  const auto opened = OpenNow({0, 1}, request, std::move(descriptor));
  ASSERT_FALSE(opened.ok());
  const std::string text(opened.status().message());
  EXPECT_THAT(text, testing::HasSubstr("GPU memory 1 of local rank 0: "));
  EXPECT_THAT(text, testing::HasSubstr(std::getenv("REFUSAL")));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace maypole
