// FakeKernel: a function of the host that stands for a kernel.
//
// Purpose: cuModuleGetFunction finds it by the kernel's name, whatever the
// module's image contains; a stream calls it in place of the kernel. The
// product's kernels are all here (//common/gpu/kernels:host_kernels). To add
// another, write a wrapper that translates device pointers, and add a row to
// the table in fake_kernels.cc:
//
//   void RunFakeFill(unsigned, unsigned, void** arguments) {
//     const auto count = Get<uint64_t>(arguments, 1);
//     auto* words = static_cast<uint32_t*>(
//         HostView(Get<CUdeviceptr>(arguments, 0), count * 4));
//     ...
//   }
//   {"fake_fill", {sizeof(CUdeviceptr), 8, 4}, RunFakeFill},
//
// Thread contract: `run` is called by the thread of a stream, without a mutex.
// HostView() may be called by any thread that does not hold the mutex.
#ifndef MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_
#define MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "common/gpu/cuda_types.h"
#include "common/gpu/kernels/testing/host_kernels.h"

namespace maypole::cuda::fake {

struct FakeKernel {
  const char* name;
  std::vector<size_t> argument_bytes;
  void (*run)(unsigned grid_x, unsigned block_x, void** arguments);
  // What a launch uses. Null: the memory that each argument of 8 bytes is an
  // address of.
  std::vector<DeviceArray> (*arrays)(void** arguments) = nullptr;
};

// Null if there is none of this name.
const FakeKernel* FindKernel(std::string_view name);

// Where the process can access `bytes` bytes of device or registered memory. A
// kernel that asks for any other memory ends the process.
void* HostView(CUdeviceptr address, size_t bytes);

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_
