// GpuRunner on a machine without a GPU's driver.
#include <gtest/gtest.h>

#include <future>
#include <string>

#include "common/gpu/driver.h"
#include "common/gpu/runner/gpu_runner.h"

namespace maypole {
namespace {

TEST(NoDriverTest, OpenSaysSo) {
  const cuda::Driver* driver = nullptr;
  const Status missing = cuda::LoadDriver(&driver);
  if (missing.ok()) GTEST_SKIP() << "there is a driver";
  std::promise<Status> answer;
  GpuRunner runner({.on_opened =
                        [&](GpuMemoryId, StatusOr<EpochGpus::Opened> opened) {
                          answer.set_value(opened.status());
                        },
                    .on_ended = [](const GpuRun&, Status) {},
                    .on_communicator_id = {},
                    .on_abort_stuck = {}});
  runner.Open({2, 1}, session::Make<session::GpuMemoryRequest>(), Fd());
  const Status s = answer.get_future().get();
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_EQ(s.message(), "GPU memory 1 of local rank 2: " + missing.message());
}

}  // namespace
}  // namespace maypole
