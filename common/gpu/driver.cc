#include "common/gpu/driver.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>

namespace maypole::cuda {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

using GetProcAddress = CUresult (*)(const char* name, void** function,
                                    int version, uint64_t flags,
                                    CUdriverProcAddressQueryResult* found);

Status Unavailable(std::string message) {
  return Status(Code::kUnavailable, std::move(message));
}

// Fills the members of a Driver. Keeps the first error.
class Resolver {
 public:
  Resolver(GetProcAddress get, Driver* driver) : get_(get), driver_(driver) {}

  // `version`: the CUDA version in which the function got the signature that
  // Driver declares, as 1000 * major + 10 * minor.
  template <typename Function>
  void Find(Function Driver::*member, const char* name, int version) {
    if (!status_.ok()) return;
    void* function = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result =
        get_(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (result == CUDA_ERROR_STUB_LIBRARY) {
      status_ = Unavailable(
          "libcuda.so.1 is the stub of CUDA's toolkit, not the NVIDIA driver; "
          "remove the toolkit's directory 'stubs' from LD_LIBRARY_PATH");
    } else if (result != CUDA_SUCCESS || function == nullptr) {
      status_ = Unavailable(std::string("the NVIDIA driver has no ") + name +
                            " of CUDA " + CudaVersion(version) +
                            "; install driver 525 or newer");
    } else {
      driver_->*member = reinterpret_cast<Function>(function);
    }
  }
  const Status& status() const { return status_; }

 private:
  const GetProcAddress get_;
  Driver* const driver_;
  Status status_;
};

void FindDevices(Resolver& r) {
  r.Find(&Driver::cuInit, "cuInit", 2000);
  r.Find(&Driver::cuDriverGetVersion, "cuDriverGetVersion", 2020);
  r.Find(&Driver::cuGetErrorName, "cuGetErrorName", 6000);
  r.Find(&Driver::cuGetErrorString, "cuGetErrorString", 6000);
  r.Find(&Driver::cuDeviceGetCount, "cuDeviceGetCount", 2000);
  r.Find(&Driver::cuDeviceGet, "cuDeviceGet", 2000);
  r.Find(&Driver::cuDeviceGetName, "cuDeviceGetName", 2000);
  r.Find(&Driver::cuDeviceGetUuid, "cuDeviceGetUuid", 11040);
  r.Find(&Driver::cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000);
  r.Find(&Driver::cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000);
  r.Find(&Driver::cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000);
  r.Find(&Driver::cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease",
         11000);
  r.Find(&Driver::cuCtxPushCurrent, "cuCtxPushCurrent", 4000);
  r.Find(&Driver::cuCtxPopCurrent, "cuCtxPopCurrent", 4000);
  r.Find(&Driver::cuThreadExchangeStreamCaptureMode,
         "cuThreadExchangeStreamCaptureMode", 10010);
}

void FindMemory(Resolver& r) {
  r.Find(&Driver::cuMemGetInfo, "cuMemGetInfo", 3020);
  r.Find(&Driver::cuPointerGetAttributes, "cuPointerGetAttributes", 7000);
  r.Find(&Driver::cuMemAlloc, "cuMemAlloc", 3020);
  r.Find(&Driver::cuMemFree, "cuMemFree", 3020);
  r.Find(&Driver::cuMemHostAlloc, "cuMemHostAlloc", 2020);
  r.Find(&Driver::cuMemFreeHost, "cuMemFreeHost", 2000);
  r.Find(&Driver::cuMemHostRegister, "cuMemHostRegister", 6050);
  r.Find(&Driver::cuMemHostUnregister, "cuMemHostUnregister", 4000);
  r.Find(&Driver::cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020);
  r.Find(&Driver::cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010);
  r.Find(&Driver::cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 11000);
  r.Find(&Driver::cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010);
  r.Find(&Driver::cuMemGetAllocationGranularity,
         "cuMemGetAllocationGranularity", 10020);
  r.Find(&Driver::cuMemCreate, "cuMemCreate", 10020);
  r.Find(&Driver::cuMemRelease, "cuMemRelease", 10020);
  r.Find(&Driver::cuMemAddressReserve, "cuMemAddressReserve", 10020);
  r.Find(&Driver::cuMemAddressFree, "cuMemAddressFree", 10020);
  r.Find(&Driver::cuMemMap, "cuMemMap", 10020);
  r.Find(&Driver::cuMemUnmap, "cuMemUnmap", 10020);
  r.Find(&Driver::cuMemSetAccess, "cuMemSetAccess", 10020);
  r.Find(&Driver::cuMemExportToShareableHandle, "cuMemExportToShareableHandle",
         10020);
  r.Find(&Driver::cuMemImportFromShareableHandle,
         "cuMemImportFromShareableHandle", 10020);
}

void FindStreams(Resolver& r) {
  r.Find(&Driver::cuStreamCreate, "cuStreamCreate", 2000);
  r.Find(&Driver::cuStreamDestroy, "cuStreamDestroy", 4000);
  r.Find(&Driver::cuStreamQuery, "cuStreamQuery", 2000);
  r.Find(&Driver::cuStreamSynchronize, "cuStreamSynchronize", 2000);
  r.Find(&Driver::cuStreamWaitEvent, "cuStreamWaitEvent", 3020);
  r.Find(&Driver::cuStreamGetCtx, "cuStreamGetCtx", 9020);
  r.Find(&Driver::cuStreamIsCapturing, "cuStreamIsCapturing", 10000);
  r.Find(&Driver::cuStreamWriteValue64, "cuStreamWriteValue64", 11070);
  r.Find(&Driver::cuMemcpyAsync, "cuMemcpyAsync", 4000);
  r.Find(&Driver::cuEventCreate, "cuEventCreate", 2000);
  r.Find(&Driver::cuEventDestroy, "cuEventDestroy", 4000);
  r.Find(&Driver::cuEventRecord, "cuEventRecord", 2000);
  r.Find(&Driver::cuEventQuery, "cuEventQuery", 2000);
  r.Find(&Driver::cuEventSynchronize, "cuEventSynchronize", 2000);
  r.Find(&Driver::cuEventElapsedTime, "cuEventElapsedTime", 2000);
  r.Find(&Driver::cuModuleLoadData, "cuModuleLoadData", 2000);
  r.Find(&Driver::cuModuleGetFunction, "cuModuleGetFunction", 2000);
  r.Find(&Driver::cuLaunchKernel, "cuLaunchKernel", 4000);
}

Status Load(Driver* driver) {
  Library library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    return Unavailable(
        "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be "
        "loaded); in a container, start it with access to the GPUs");
  }
  const auto get = reinterpret_cast<GetProcAddress>(
      dlsym(library.get(), "cuGetProcAddress_v2"));
  if (get == nullptr) {
    return Unavailable(
        "the NVIDIA driver is older than CUDA 12 (libcuda.so.1 has no "
        "cuGetProcAddress_v2); install driver 525 or newer");
  }
  Resolver resolver(get, driver);
  FindDevices(resolver);
  FindMemory(resolver);
  FindStreams(resolver);
  if (!resolver.status().ok()) return resolver.status();
  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS) {
    const Status why = CudaStatus(*driver, result, "cuInit");
    return Unavailable("the NVIDIA driver finds no usable GPU: " +
                       why.message());
  }
  static_cast<void>(library.release());  // loaded until the process ends
  return Status();
}

Code CodeOf(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return Code::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
      return Code::kInvalidArgument;
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return Code::kFailedPrecondition;
    case CUDA_ERROR_NOT_SUPPORTED:
      return Code::kUnimplemented;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

}  // namespace

std::string CudaVersion(int number) {
  return std::to_string(number / 1000) + "." +
         std::to_string(number % 1000 / 10);
}

Status CudaStatus(const Driver& driver, CUresult result,
                  std::string_view call) {
  if (result == CUDA_SUCCESS) return Status();
  std::string text = std::string(call) + ": ";
  const std::string number = std::to_string(static_cast<int>(result));
  const char* name = nullptr;
  const char* what = nullptr;
  if (driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr &&
      driver.cuGetErrorString(result, &what) == CUDA_SUCCESS &&
      what != nullptr) {
    text += std::string(what) + " (" + name + ", " + number + ")";
  } else {
    text += "CUDA error " + number;
  }
  return Status(CodeOf(result), std::move(text));
}

Status LoadDriver(const Driver** driver) {
  static std::mutex mutex;
  static Driver loaded = {};
  static bool ready = false;
  std::lock_guard lock(mutex);
  if (!ready) {
    if (Status s = Load(&loaded); !s.ok()) return s;
    ready = true;
  }
  *driver = &loaded;
  return Status();
}

}  // namespace maypole::cuda
