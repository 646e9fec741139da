#include "worker/backend/gpu/plugin/kernels/reduce_kernel.h"

namespace maypole::gpu::plugin {

const void* ReduceBfloat16Kernel(Op op, uint32_t inputs) {
  return ReduceKernelOf<Brain>(op, inputs);
}

}  // namespace maypole::gpu::plugin
