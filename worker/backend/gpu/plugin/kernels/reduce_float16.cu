#include "worker/backend/gpu/plugin/kernels/reduce_kernel.h"

namespace maypole::gpu::plugin {

const void* ReduceFloat16Kernel(Op op, uint32_t inputs) {
  return ReduceKernelOf<Half>(op, inputs);
}

}  // namespace maypole::gpu::plugin
