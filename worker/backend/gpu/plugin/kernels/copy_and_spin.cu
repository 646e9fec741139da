#include "worker/backend/gpu/plugin/kernels/copy_share.h"
#include "worker/backend/gpu/plugin/kernels/kernels.h"

namespace maypole::gpu::plugin {
namespace {

__global__ void __launch_bounds__(kThreads)
    Copy(const __grid_constant__ CopyTask task) {
  const uint64_t thread =
      static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  CopyShare(task, thread, threads);
}

// A nanosecond clock of the whole device, which also runs while the context is
// switched out.
__device__ uint64_t GlobalTimer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void Spin(uint64_t nanoseconds) {
  const uint64_t begin = GlobalTimer();
  while (GlobalTimer() - begin < nanoseconds) {
  }
}

}  // namespace

const void* CopyKernel() { return reinterpret_cast<const void*>(&Copy); }
const void* SpinKernel() { return reinterpret_cast<const void*>(&Spin); }

}  // namespace maypole::gpu::plugin
