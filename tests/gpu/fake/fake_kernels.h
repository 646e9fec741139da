// FakeKernel: a function of the host that stands for a kernel.
//
// Purpose: cuModuleGetFunction finds it by the kernel's name, whatever the
// module's image contains; a stream calls it in place of the kernel. To add
// one, write a wrapper that translates device pointers, and add a row to the
// table in fake_kernels.cc:
//
//   void RunFakeAddOne(unsigned, unsigned, void** arguments) {
//     auto* floats = static_cast<float*>(HostView(Get<CUdeviceptr>(arguments,
//     0)));
//     ...
//   }
//   {"fake_add_one", {sizeof(CUdeviceptr), sizeof(uint64_t)}, RunFakeAddOne},
//
// Thread contract: `run` is called by the thread of a stream, without a mutex.
// HostView() may be called by any thread that does not hold the mutex.
#ifndef MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_
#define MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "common/gpu/cuda_types.h"

namespace maypole::cuda::fake {

struct FakeKernel {
  const char* name;
  std::vector<size_t> argument_bytes;
  void (*run)(unsigned grid_x, unsigned block_x, void** arguments);
};

// Null if there is none of this name.
const FakeKernel* FindKernel(std::string_view name);

// Where the process can access device or registered memory. A kernel that asks
// for any other memory ends the process.
void* HostView(CUdeviceptr address);

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_FAKE_KERNELS_H_
