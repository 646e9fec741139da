// Libraries: the libraries that the plugin opens at run time: the CUDA driver
// (for calls that CUDA's runtime lacks) and NCCL.
//
// Purpose: the plugin is not linked with them, so that it can be loaded on any
// machine and report what is missing.
//
//   const Libraries& libraries = LoadLibraries("");   // in initialize()
//   libraries.driver.mem_release(handle);
//   libraries.Nccl().get_version(&version);        // throws if there is none
//
// Thread contract: LoadLibraries from any thread; its result does not change
// and lives until the process ends.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_LIBRARIES_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_LIBRARIES_H_

#include <cuda.h>
#include <cudaTypedefs.h>
#include <nccl.h>

#include <string>

#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {

// Functions of libcuda.so.1; the type names contain the CUDA version that
// introduced this form of the call.
struct DriverApi {
  PFN_cuDeviceGetAttribute_v2000 device_attribute = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 primary_release = nullptr;
  PFN_cuCtxPushCurrent_v4000 ctx_push = nullptr;
  PFN_cuCtxPopCurrent_v4000 ctx_pop = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 mem_granularity = nullptr;
  PFN_cuMemCreate_v10020 mem_create = nullptr;
  PFN_cuMemRelease_v10020 mem_release = nullptr;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
  PFN_cuMemMap_v10020 mem_map = nullptr;
  PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
  PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import = nullptr;
  PFN_cuMemsetD32Async_v3020 memset_d32_async = nullptr;
  PFN_cuStreamWriteValue64_v11070 stream_write_value64 = nullptr;
  PFN_cuStreamWaitValue64_v11070 stream_wait_value64 = nullptr;
};

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
};

struct Libraries {
  DriverApi driver;
  NcclApi nccl;
  MaypoleGpuVersions versions = {};

  // Throws kUnavailable if NCCL could not be opened.
  const NcclApi& Nccl() const;
};

// Opens the libraries at the first call that succeeds; later calls return the
// same, but look for NCCL again if it was missing. Throws kUnavailable if there
// is no driver, the driver does not support this plugin, or there is no device.
const Libraries& LoadLibraries(const std::string& nccl);

// Returns the loaded libraries; throws kFailedPrecondition before.
const Libraries& Loaded();

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_LIBRARIES_H_
