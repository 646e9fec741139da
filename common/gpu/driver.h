// Driver: the functions of the CUDA driver, libcuda.so.1, that Maypole calls.
//
// Purpose: Maypole uses only the driver's API, and neither the CUDA runtime nor
// a library linked against driver or runtime, so that one build runs without a
// GPU and with every driver from CUDA 12.0 on. The members have the functions'
// own names; each has the signature of the API version given in driver.cc,
// whatever the driver.
//
//   const Driver* driver = nullptr;
//   Status s = LoadDriver(&driver);      // kUnavailable: no usable driver
//   s = CudaStatus(*driver, driver->cuStreamQuery(stream), "cuStreamQuery");
//
// Thread contract: LoadDriver() and the functions may be called by any thread.
//
// Invariants: all pointers are set. The library stays loaded until the process
// ends. Nothing here is called before the process uses a CUDA tensor, so a
// script may still choose its GPUs (CUDA_VISIBLE_DEVICES) after init().
#ifndef MAYPOLE_COMMON_GPU_DRIVER_H_
#define MAYPOLE_COMMON_GPU_DRIVER_H_

#include <string>
#include <string_view>

#include "common/gpu/cuda_types.h"
#include "common/status.h"

namespace maypole::cuda {

struct Driver {
  // Devices and contexts.
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult error, const char** name);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);
  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int bytes, CUdevice device);
  CUresult (*cuDeviceGetUuid)(CUuuid* uuid,
                              CUdevice device);  // MIG: instance's
  CUresult (*cuDeviceGetAttribute)(int* value, CUdevice_attribute attribute,
                                   CUdevice device);
  CUresult (*cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);
  CUresult (*cuCtxPushCurrent)(CUcontext context);
  CUresult (*cuCtxPopCurrent)(CUcontext* context);
  CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode);

  // Memory.
  CUresult (*cuMemGetInfo)(size_t* free, size_t* total);
  CUresult (*cuPointerGetAttributes)(unsigned count,
                                     CUpointer_attribute* attributes,
                                     void** values, CUdeviceptr address);
  CUresult (*cuMemAlloc)(CUdeviceptr* address, size_t bytes);
  CUresult (*cuMemFree)(CUdeviceptr address);
  CUresult (*cuMemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  CUresult (*cuMemFreeHost)(void* memory);
  CUresult (*cuMemHostRegister)(void* memory, size_t bytes, unsigned flags);
  CUresult (*cuMemHostUnregister)(void* memory);
  CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr* address, void* memory,
                                        unsigned flags);
  CUresult (*cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address);
  CUresult (*cuIpcOpenMemHandle)(CUdeviceptr* address, CUipcMemHandle handle,
                                 unsigned flags);
  CUresult (*cuIpcCloseMemHandle)(CUdeviceptr address);
  CUresult (*cuMemGetAllocationGranularity)(
      size_t* bytes, const CUmemAllocationProp* properties,
      CUmemAllocationGranularity_flags which);
  CUresult (*cuMemCreate)(CUmemGenericAllocationHandle* handle, size_t bytes,
                          const CUmemAllocationProp* properties,
                          unsigned long long flags);
  CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle);
  CUresult (*cuMemAddressReserve)(CUdeviceptr* address, size_t bytes,
                                  size_t alignment, CUdeviceptr at,
                                  unsigned long long flags);
  CUresult (*cuMemAddressFree)(CUdeviceptr address, size_t bytes);
  CUresult (*cuMemMap)(CUdeviceptr address, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle,
                       unsigned long long flags);
  CUresult (*cuMemUnmap)(CUdeviceptr address, size_t bytes);
  CUresult (*cuMemSetAccess)(CUdeviceptr address, size_t bytes,
                             const CUmemAccessDesc* access, size_t count);
  CUresult (*cuMemExportToShareableHandle)(void* out,
                                           CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type,
                                           unsigned long long flags);
  CUresult (*cuMemImportFromShareableHandle)(
      CUmemGenericAllocationHandle* handle, void* from,
      CUmemAllocationHandleType type);

  // Streams and events.
  CUresult (*cuStreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamQuery)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags);
  CUresult (*cuStreamGetCtx)(CUstream stream, CUcontext* context);
  CUresult (*cuStreamIsCapturing)(CUstream stream,
                                  CUstreamCaptureStatus* status);
  CUresult (*cuStreamWriteValue64)(CUstream stream, CUdeviceptr address,
                                   uint64_t value, unsigned flags);
  CUresult (*cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                            CUstream stream);
  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventQuery)(CUevent event);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float* milliseconds, CUevent begin,
                                 CUevent end);

  // Kernels.
  CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module,
                                  const char* name);
  CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x,
                             unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream,
                             void** arguments, void** extra);
};

// Opens libcuda.so.1 as the dynamic linker finds it and calls cuInit(), once
// per process (after a failure, the next call tries again). Returns
// kUnavailable, with one line that says what to do, if there is no driver, if
// the library is the stub of CUDA's toolkit, if the driver is too old, or if it
// finds no device.
Status LoadDriver(const Driver** driver);

// kOk for CUDA_SUCCESS; otherwise the code that fits, and "CALL: TEXT (NAME,
// NUMBER)".
Status CudaStatus(const Driver& driver, CUresult result, std::string_view call);

// A version as CUDA writes it: 12040 is "12.4".
std::string CudaVersion(int number);

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_DRIVER_H_
