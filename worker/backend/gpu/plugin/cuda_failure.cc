#include "worker/backend/gpu/plugin/cuda_failure.h"

namespace maypole::gpu::plugin {

MaypoleGpuCode CodeOfCuda(int native) {
  switch (native) {
    case cudaErrorMemoryAllocation:
      return MAYPOLE_GPU_RESOURCE_EXHAUSTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return MAYPOLE_GPU_INVALID_ARGUMENT;
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorNotReady:
    case cudaErrorNotPermitted:
      return MAYPOLE_GPU_FAILED_PRECONDITION;
    case cudaErrorNotSupported:
      return MAYPOLE_GPU_UNIMPLEMENTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
      return MAYPOLE_GPU_UNAVAILABLE;
    default:
      return MAYPOLE_GPU_INTERNAL;
  }
}

Failure CudaFailure(int native, const std::string& call) {
  const auto error = static_cast<cudaError_t>(native);
  return {CodeOfCuda(native), native,
          call + ": " + cudaGetErrorString(error) + " (" +
              cudaGetErrorName(error) + ", " + std::to_string(native) + ")"};
}

}  // namespace maypole::gpu::plugin
