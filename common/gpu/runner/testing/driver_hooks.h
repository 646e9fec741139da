// DriverHooks: changes what the fake driver does while a test runs.
//
// Purpose: the Driver of the process calls the fake through functions that
// count what is held, fail when a test says so, and hold kernels back.
//
//   DriverHooks& hooks = DriverHooks::Get();
//   hooks.Reset();
//   hooks.launch_error = cuda::CUDA_ERROR_LAUNCH_FAILED;   // one launch
//   hooks.Hold(); ...; hooks.Release();
//   EXPECT_EQ(hooks.mapped, 0);
//
// Thread contract: Get() for the first time before other threads use the
// driver; then any thread. The device's context must be current for Hold().
#ifndef MAYPOLE_COMMON_GPU_RUNNER_TESTING_DRIVER_HOOKS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_TESTING_DRIVER_HOOKS_H_

#include <atomic>

#include "common/gpu/driver.h"

namespace maypole {

class DriverHooks {
 public:
  static DriverHooks& Get();
  // Nothing is held, nothing fails, and counts are zero.
  void Reset();

  // From now on every kernel launched begins only after Release().
  void Hold();
  // Holds no further kernels; those that are held stay held.
  void HoldNoMore() { flag_ = 0; }
  void Release();

  // The next call, of any thread, returns this error and does nothing.
  std::atomic<cuda::CUresult> launch_error;
  std::atomic<cuda::CUresult> record_error;
  std::atomic<cuda::CUresult> query_error;
  // All calls, until it is reset.
  std::atomic<cuda::CUresult> get_function_error;

  // Launches do not return until it is false.
  std::atomic<bool> launch_hangs;
  std::atomic<int> hanging_launches;

  // What the process has now.
  std::atomic<int> mapped, reserved, imported, allocated, events, streams;
  std::atomic<int> launches;  // so far

 private:
  DriverHooks();

  std::atomic<cuda::CUdeviceptr> flag_;  // kernels wait for it; 0: none
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_TESTING_DRIVER_HOOKS_H_
