// What the .cu files need from CUDA, for the host compiler: one thread of the
// host runs the threads of a grid one after the other.
//
// Purpose: kernels are tested, also under sanitizers, where there is no GPU.
// Include this before a .cu file. The kernels use no barriers, no shuffles and
// no shared memory, so any order of their threads is correct.
//
// Thread contract: blockIdx and its like belong to the calling thread.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_TESTING_CUDA_SHIM_H_
#define MAYPOLE_COMMON_GPU_KERNELS_TESTING_CUDA_SHIM_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "common/reduce/reduce.h"

#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)

namespace maypole::cuda {

namespace shim {

struct Index {
  unsigned x = 0;
};

// Ends the program where a GPU would report a misaligned address.
inline void CheckAligned(uint64_t address, uint64_t size) {
  if (address % size == 0) return;
  std::fprintf(stderr, "misaligned access to %llu bytes at %#llx\n",
               static_cast<unsigned long long>(size),
               static_cast<unsigned long long>(address));
  std::abort();
}

}  // namespace shim

inline thread_local shim::Index blockIdx;
inline thread_local shim::Index threadIdx;
inline thread_local shim::Index blockDim;
inline thread_local shim::Index gridDim;

namespace shim {

// Calls kernel(arguments...) as every thread of the grid.
template <typename Kernel, typename... Arguments>
void RunGrid(unsigned grid, unsigned block, Kernel kernel,
             const Arguments&... arguments) {
  gridDim.x = grid;
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {
      kernel(arguments...);
    }
  }
}

}  // namespace shim
}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_TESTING_CUDA_SHIM_H_
