#include "worker/backend/gpu/plugin/kernels/reduce_kernel.h"

namespace maypole::gpu::plugin {

const void* ReduceFloat32Kernel(Op op, uint32_t inputs) {
  return ReduceKernelOf<Plain<float>>(op, inputs);
}

}  // namespace maypole::gpu::plugin
