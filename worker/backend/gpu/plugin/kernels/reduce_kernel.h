// The reduction kernels of one element type, for nvcc. One .cu file per type
// includes this, so that the types are compiled in parallel.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_KERNEL_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_KERNEL_H_

#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin/kernels/reduce_share.h"

namespace maypole::gpu::plugin {

template <typename E, typename O, int kInputs>
__global__ void __launch_bounds__(kThreads)
    Reduce(const __grid_constant__ ReduceTask task) {
  const uint64_t thread =
      static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  ReduceShare<E, O, kInputs>(task, thread, threads);
}

template <typename E, typename O>
const void* ReduceKernelBy(uint32_t inputs) {
  const auto address = [](void (*kernel)(ReduceTask)) {
    return reinterpret_cast<const void*>(kernel);
  };
  switch (inputs) {
    case 0:
      return nullptr;
    case 1:
      return address(&Reduce<E, O, 1>);
    case 2:
      return address(&Reduce<E, O, 2>);
    case 3:
      return address(&Reduce<E, O, 3>);
    case 4:
      return address(&Reduce<E, O, 4>);
    case 5:
      return address(&Reduce<E, O, 5>);
    case 6:
      return address(&Reduce<E, O, 6>);
    case 7:
      return address(&Reduce<E, O, 7>);
    case 8:
      return address(&Reduce<E, O, 8>);
    default:
      return address(&Reduce<E, O, 0>);
  }
}

template <typename E>
const void* ReduceKernelOf(Op op, uint32_t inputs) {
  switch (op) {
    case Op::kSum:
      return ReduceKernelBy<E, Add>(inputs);
    case Op::kMin:
      return ReduceKernelBy<E, Min>(inputs);
    case Op::kMax:
      return ReduceKernelBy<E, Max>(inputs);
    default:
      return nullptr;
  }
}

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_KERNEL_H_
