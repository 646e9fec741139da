// The kernels, as the host code that launches them sees them.
//
// Purpose: the .cu files only define kernels and return their addresses.
// Ordinary C++ (launch.cc) checks arguments and chooses grid and stream. The
// bodies of the kernels are in *_share.h, which the host also compiles, for
// tests.
//
//   const void* kernel = ReduceKernel(dtype, op, task.input_count);
//   void* arguments[] = {&task};
//   cudaLaunchKernel(kernel, blocks, kThreads, arguments, 0, stream);
//
// Thread contract: pure functions.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_KERNELS_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace maypole::gpu::plugin {

// Threads of a block of ReduceKernel and CopyKernel.
inline constexpr int kThreads = 256;
// Bytes that one load or store of a thread moves, if the addresses allow it.
inline constexpr uint64_t kVectorBytes = 16;
inline constexpr int kMaxBuffers = 16;  // gpu.h: kMaxReduced

// The argument of ReduceKernel, passed by value, so at most 4 KiB.
struct ReduceTask {
  const std::byte* inputs[kMaxBuffers];
  std::byte* outputs[kMaxBuffers];
  uint32_t input_count;
  uint32_t output_count;
  uint64_t elements;
  double scale;
  bool vectors;  // all addresses are multiples of kVectorBytes
};

// The argument of CopyKernel.
struct CopyTask {
  std::byte* to;
  const std::byte* from;
  uint64_t bytes;
};

// Returns nullptr if there is no such kernel. `inputs` is 1 to kMaxBuffers.
const void* ReduceKernel(DType dtype, Op op, uint32_t inputs);
const void* ReduceFloat32Kernel(Op op, uint32_t inputs);
const void* ReduceFloat64Kernel(Op op, uint32_t inputs);
const void* ReduceFloat16Kernel(Op op, uint32_t inputs);
const void* ReduceBfloat16Kernel(Op op, uint32_t inputs);

const void* CopyKernel();
// The argument is uint64_t nanoseconds. Launch it with blocks of one warp.
const void* SpinKernel();

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_KERNELS_H_
