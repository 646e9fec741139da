// Check: throws errors of CUDA calls as Failures.
//
//   Check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
//
// Thread contract: pure functions.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_CUDA_FAILURE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_CUDA_FAILURE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "worker/backend/gpu/plugin/failure.h"

namespace maypole::gpu::plugin {

// Returns the code for a CUDA error. CUresult and cudaError_t use the same
// numbers.
MaypoleGpuCode CodeOfCuda(int native);
// "cuMemCreate: out of memory (cudaErrorMemoryAllocation, 2)".
Failure CudaFailure(int native, const std::string& call);

// Throws unless the call succeeded.
inline void Check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw CudaFailure(result, call);
}
inline void Check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw CudaFailure(result, call);
}

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_CUDA_FAILURE_H_
