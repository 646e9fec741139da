#include "common/gpu/runner/testing/driver_hooks.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using namespace cuda;  // the driver's types and constants

constexpr char kImage[] = ".version 8.0\n";

Driver original;

// Takes an error that is for one call.
CUresult Take(std::atomic<CUresult>& error) {
  return error.exchange(CUDA_SUCCESS);
}

DriverHooks& Hooks() { return DriverHooks::Get(); }

// Counts a call that has succeeded.
CUresult Counted(CUresult result, std::atomic<int>& count, int change) {
  if (result == CUDA_SUCCESS) count += change;
  return result;
}

CUfunction WaitKernel() {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  original.cuModuleLoadData(&module, kImage);
  original.cuModuleGetFunction(&function, module, "fake_wait");
  return function;
}

std::atomic<uint64_t>* Flag() {
  static void* memory = nullptr;
  if (memory == nullptr) original.cuMemHostAlloc(&memory, sizeof(uint64_t), 0);
  return static_cast<std::atomic<uint64_t>*>(memory);
}

}  // namespace

DriverHooks& DriverHooks::Get() {
  static auto& hooks = *new DriverHooks;
  return hooks;
}

DriverHooks::DriverHooks() {
  Driver& d = const_cast<Driver&>(fake::cuda());
  original = d;
  d.cuMemMap = [](auto... a) {
    return Counted(original.cuMemMap(a...), Hooks().mapped, 1);
  };
  d.cuMemUnmap = [](auto... a) {
    return Counted(original.cuMemUnmap(a...), Hooks().mapped, -1);
  };
  d.cuMemAddressReserve = [](auto... a) {
    return Counted(original.cuMemAddressReserve(a...), Hooks().reserved, 1);
  };
  d.cuMemAddressFree = [](auto... a) {
    return Counted(original.cuMemAddressFree(a...), Hooks().reserved, -1);
  };
  d.cuMemCreate = [](auto... a) {
    return Counted(original.cuMemCreate(a...), Hooks().imported, 1);
  };
  d.cuMemImportFromShareableHandle = [](auto... a) {
    return Counted(original.cuMemImportFromShareableHandle(a...),
                   Hooks().imported, 1);
  };
  d.cuMemRelease = [](auto... a) {
    return Counted(original.cuMemRelease(a...), Hooks().imported, -1);
  };
  d.cuMemAlloc = [](auto... a) {
    return Counted(original.cuMemAlloc(a...), Hooks().allocated, 1);
  };
  d.cuMemFree = [](auto... a) {
    return Counted(original.cuMemFree(a...), Hooks().allocated, -1);
  };
  d.cuEventCreate = [](auto... a) {
    return Counted(original.cuEventCreate(a...), Hooks().events, 1);
  };
  d.cuEventDestroy = [](auto... a) {
    return Counted(original.cuEventDestroy(a...), Hooks().events, -1);
  };
  d.cuStreamCreate = [](auto... a) {
    return Counted(original.cuStreamCreate(a...), Hooks().streams, 1);
  };
  d.cuStreamDestroy = [](auto... a) {
    return Counted(original.cuStreamDestroy(a...), Hooks().streams, -1);
  };
  d.cuEventRecord = [](auto... a) {
    const CUresult error = Take(Hooks().record_error);
    return error != CUDA_SUCCESS ? error : original.cuEventRecord(a...);
  };
  d.cuEventQuery = [](auto... a) {
    const CUresult error = Take(Hooks().query_error);
    return error != CUDA_SUCCESS ? error : original.cuEventQuery(a...);
  };
  d.cuModuleGetFunction = [](auto... a) {
    const CUresult error = Hooks().get_function_error;
    return error != CUDA_SUCCESS ? error : original.cuModuleGetFunction(a...);
  };
  d.cuLaunchKernel = [](CUfunction function, unsigned x, unsigned y, unsigned z,
                        unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
    DriverHooks& hooks = Hooks();
    ++hooks.hanging_launches;
    while (hooks.launch_hangs) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --hooks.hanging_launches;
    if (const CUresult error = Take(hooks.launch_error)) return error;
    if (CUdeviceptr flag = hooks.flag_; flag != 0) {
      void* wait_arguments[] = {&flag};
      original.cuLaunchKernel(WaitKernel(), 1, 1, 1, 1, 1, 1, 0, stream,
                              wait_arguments, nullptr);
    }
    return Counted(original.cuLaunchKernel(function, x, y, z, bx, by, bz,
                                           shared, stream, arguments, extra),
                   hooks.launches, 1);
  };
}

void DriverHooks::Reset() {
  flag_ = 0;
  launch_hangs = false;
  for (auto* error :
       {&launch_error, &record_error, &query_error, &get_function_error}) {
    *error = CUDA_SUCCESS;
  }
  for (auto* count : {&mapped, &reserved, &imported, &allocated, &events,
                      &streams, &launches}) {
    *count = 0;
  }
}

void DriverHooks::Hold() {
  Flag()->store(0);
  flag_ = reinterpret_cast<CUdeviceptr>(Flag());
}

void DriverHooks::Release() {
  HoldNoMore();
  Flag()->store(1);
}

}  // namespace maypole
