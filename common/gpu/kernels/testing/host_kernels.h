// HostKernels: the GPU kernels, compiled for the host, for tests and for a
// driver that only pretends to have a GPU.
//
//   SetHostAddress(&HostAddressOf);  // if addresses are a device's
//   const HostKernel* kernel = FindHostKernel(kCopyKernel);
//   void* pointers[] = {&arguments};  // as for cuLaunchKernel
//   kernel->run(grid_x, block_x, pointers);
//
// Thread contract: any thread; SetHostAddress() before the first run(), which
// returns when the kernel has ended.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_TESTING_HOST_KERNELS_H_
#define MAYPOLE_COMMON_GPU_KERNELS_TESTING_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/gpu/kernels/kernels.h"

namespace maypole::cuda {

// Where `bytes` bytes (at least one) at a device address lie in this process.
// run() calls it before the grid, once for each array that the kernel uses. It
// must keep the address's remainder modulo kVectorBytes.
using HostAddress = void* (*)(unsigned long long device_address, size_t bytes);

// For all kernels of the process. Null, as at first: addresses are those of the
// process.
void SetHostAddress(HostAddress host);

struct DeviceArray {
  uint64_t address;
  uint64_t bytes;  // at least 1
};

struct HostKernel {
  const char* name;
  KernelGroup group;
  size_t argument_count;
  size_t argument_bytes[2];
  // `arguments` as for cuLaunchKernel(): pointers to the arguments.
  void (*run)(unsigned grid_x, unsigned block_x, void** arguments);
  // What a run with these arguments reads or writes.
  std::vector<DeviceArray> (*arrays)(void** arguments);
};

std::span<const HostKernel> HostKernels();

// Null if there is no kernel with this name.
const HostKernel* FindHostKernel(std::string_view name);

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_TESTING_HOST_KERNELS_H_
