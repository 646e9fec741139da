#include "worker/backend/gpu/plugin/libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/backend/gpu/plugin/cuda_failure.h"

namespace maypole::gpu::plugin {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// Returns "13.0" for 13000.
std::string CudaVersion(int number) {
  return std::to_string(number / 1000) + "." +
         std::to_string(number % 1000 / 10);
}

// Throws unless there is a driver with a device.
void CheckDriver(MaypoleGpuVersions* versions) {
  Check(cudaRuntimeGetVersion(&versions->runtime), "cudaRuntimeGetVersion");
  const cudaError_t known = cudaDriverGetVersion(&versions->driver);
  if (known != cudaSuccess || versions->driver == 0) {
    throw Unavailable(
        "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be "
        "loaded)");
  }
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return;
  Failure failure = CudaFailure(
      result == cudaSuccess ? cudaErrorNoDevice : result, "cudaGetDeviceCount");
  failure.code = MAYPOLE_GPU_UNAVAILABLE;
  failure.text +=
      "; the driver supports CUDA " + CudaVersion(versions->driver) +
      ", the plugin was built with " + CudaVersion(versions->runtime);
  throw failure;
}

// Fills the pointers of a DriverApi with cuGetProcAddress, which returns a call
// in the form that it had in a given version of CUDA.
class DriverLoader {
 public:
  DriverLoader() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw Unavailable(dlerror());
    find_ = reinterpret_cast<PFN_cuGetProcAddress_v12000>(
        dlsym(library_.get(), "cuGetProcAddress_v2"));
    if (find_ == nullptr) {
      throw Unavailable(
          "libcuda.so.1 has no cuGetProcAddress_v2: the driver "
          "is older than CUDA 12");
    }
  }

  template <typename Function>
  void Find(const char* name, int version, Function* function) const {
    void* found = nullptr;
    CUdriverProcAddressQueryResult how = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result =
        find_(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &how);
    if (result != CUDA_SUCCESS || found == nullptr) {
      throw Unavailable(std::string("the NVIDIA driver has no ") + name +
                        " of CUDA " + CudaVersion(version));
    }
    *function = reinterpret_cast<Function>(found);
  }

  // Keeps the library, and so the pointers, until the process ends.
  void Keep() { library_.release(); }

 private:
  Library library_;
  PFN_cuGetProcAddress_v12000 find_ = nullptr;
};

DriverApi LoadDriverApi() {
  DriverLoader from;
  DriverApi api;
  from.Find("cuDeviceGetAttribute", 2000, &api.device_attribute);
  from.Find("cuDevicePrimaryCtxRetain", 7000, &api.primary_retain);
  from.Find("cuDevicePrimaryCtxRelease", 11000, &api.primary_release);
  from.Find("cuCtxPushCurrent", 4000, &api.ctx_push);
  from.Find("cuCtxPopCurrent", 4000, &api.ctx_pop);
  from.Find("cuMemGetAllocationGranularity", 10020, &api.mem_granularity);
  from.Find("cuMemCreate", 10020, &api.mem_create);
  from.Find("cuMemRelease", 10020, &api.mem_release);
  from.Find("cuMemAddressReserve", 10020, &api.mem_address_reserve);
  from.Find("cuMemAddressFree", 10020, &api.mem_address_free);
  from.Find("cuMemMap", 10020, &api.mem_map);
  from.Find("cuMemUnmap", 10020, &api.mem_unmap);
  from.Find("cuMemSetAccess", 10020, &api.mem_set_access);
  from.Find("cuMemExportToShareableHandle", 10020, &api.mem_export);
  from.Find("cuMemImportFromShareableHandle", 10020, &api.mem_import);
  from.Find("cuMemsetD32Async", 3020, &api.memset_d32_async);
  from.Find("cuStreamWriteValue64", 11070, &api.stream_write_value64);
  from.Find("cuStreamWaitValue64", 11070, &api.stream_wait_value64);
  from.Keep();
  return api;
}

std::vector<std::string> NcclPaths(const std::string& given) {
  if (!given.empty()) return {given};
  std::vector<std::string> paths = {"libnccl.so.2"};
  const char* home = std::getenv("NCCL_HOME");
  if (home != nullptr && *home != '\0') {
    paths.push_back(std::string(home) + "/lib/libnccl.so.2");
  }
  return paths;
}

Library OpenNccl(const std::string& given) {
  std::string errors;
  for (const std::string& path : NcclPaths(given)) {
    Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (library != nullptr) return library;
    errors += errors.empty() ? "" : "; ";
    errors += dlerror();
  }
  throw Unavailable(errors);
}

template <typename Function>
void FindIn(const Library& library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library.get(), name));
  if (*function == nullptr) {
    throw Unavailable(std::string("libnccl.so.2 has no ") + name +
                      ": NCCL 2.14 or newer is needed");
  }
}

NcclApi LoadNcclApi(const std::string& given) {
  Library library = OpenNccl(given);
  NcclApi api;
  FindIn(library, "ncclGetVersion", &api.get_version);
  FindIn(library, "ncclGetUniqueId", &api.get_unique_id);
  FindIn(library, "ncclCommInitRankConfig", &api.comm_init_rank_config);
  FindIn(library, "ncclCommGetAsyncError", &api.comm_get_async_error);
  FindIn(library, "ncclCommAbort", &api.comm_abort);
  FindIn(library, "ncclAllReduce", &api.all_reduce);
  FindIn(library, "ncclGetErrorString", &api.get_error_string);
  FindIn(library, "ncclGetLastError", &api.get_last_error);
  library.release();  // never unload NCCL: it may have threads
  return api;
}

// If there is no NCCL, everything else works, and nccl_error says why.
void TryNccl(const std::string& given, Libraries* libraries) {
  MaypoleGpuVersions& versions = libraries->versions;
  try {
    const NcclApi api = LoadNcclApi(given);
    if (api.get_version(&versions.nccl) != ncclSuccess || versions.nccl == 0) {
      throw Unavailable("ncclGetVersion of libnccl.so.2 failed");
    }
    libraries->nccl = api;
    versions.nccl_error[0] = '\0';
  } catch (const Failure& failure) {
    MaypoleGpuError error;
    Report(failure, &error);
    static_assert(sizeof(error.text) == sizeof(versions.nccl_error));
    memcpy(versions.nccl_error, error.text, sizeof(error.text));
    versions.nccl = 0;
  }
}

std::atomic<const Libraries*> loaded{nullptr};

}  // namespace

const NcclApi& Libraries::Nccl() const {
  if (versions.nccl == 0) {
    throw Unavailable(std::string("there is no NCCL: ") + versions.nccl_error);
  }
  return nccl;
}

const Libraries& LoadLibraries(const std::string& nccl) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const Libraries* known = loaded.load(std::memory_order_acquire);
  if (known != nullptr && known->versions.nccl != 0) return *known;
  auto libraries = known != nullptr ? std::make_unique<Libraries>(*known)
                                    : std::make_unique<Libraries>();
  if (known == nullptr) {
    CheckDriver(&libraries->versions);
    libraries->driver = LoadDriverApi();
  }
  TryNccl(nccl, libraries.get());
  // The previous object is never freed, because a thread may be using it.
  const Libraries* published = libraries.release();
  loaded.store(published, std::memory_order_release);
  return *published;
}

const Libraries& Loaded() {
  const Libraries* libraries = loaded.load(std::memory_order_acquire);
  if (libraries == nullptr) {
    throw FailedPrecondition("initialize() has not been called, or failed");
  }
  return *libraries;
}

}  // namespace maypole::gpu::plugin
