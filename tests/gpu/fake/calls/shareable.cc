// The driver's functions for virtual memory management: memory that processes
// share by descriptors.
#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

// Calls body(process) if the GPUs have virtual memory management.
template <typename Body>
CUresult WithVmm(const char* name, Body body) {
  return InProcess(name, [&](FakeProcess& process, FakeProcess::Held&) {
    if (process.config().vmm == FakeConfig::Vmm::kNone) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    return body(process);
  });
}

bool IsMultiple(size_t bytes) {
  return bytes != 0 && bytes % kGranularity == 0;
}

// Calls visit(region) for each mapping in the range; false if they do not fill
// it exactly.
template <typename Visit>
bool ForEachMapping(FakeMemory& memory, CUdeviceptr address, size_t bytes,
                    Visit visit) {
  const CUdeviceptr end = address + bytes;
  for (const bool check_only : {true, false}) {
    CUdeviceptr next = address;
    while (next < end) {
      const auto it = memory.regions().find(next);
      if (it == memory.regions().end() ||
          it->second.kind != MemoryKind::kMapped) {
        return false;
      }
      next += it->second.bytes;
      if (!check_only) visit(it);
    }
    if (next != end) return false;
  }
  return bytes != 0;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* bytes,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  return WithVmm("cuMemGetAllocationGranularity", [&](FakeProcess& process) {
    if (process.Device(properties->location.id) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = kGranularity;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return WithVmm("cuMemCreate", [&](FakeProcess& process) {
    if (const CUresult error = process.CheckCaptures()) return error;
    if (!IsMultiple(bytes) || flags != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    FakeContext* const device = process.Device(properties->location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    auto backing = Backing::Create(process.state(), process.config().memory,
                                   device->gpu, bytes, Backing::kShareable);
    if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = process.NewHandle<CUmemGenericAllocationHandle>();
    process.shareables[*handle] = {
        std::move(backing), properties->requestedHandleTypes ==
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return WithVmm("cuMemRelease", [&](FakeProcess& process) {
    return process.shareables.erase(handle) == 1 ? CUDA_SUCCESS
                                                 : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes,
                             size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return WithVmm("cuMemAddressReserve", [&](FakeProcess& process) {
    if (!IsMultiple(bytes) || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *address =
        process.memory().Reserve(bytes, std::max(alignment, kGranularity));
    return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return WithVmm("cuMemAddressFree", [&](FakeProcess& process) {
    if (process.memory().Overlaps(address, bytes) ||
        !process.memory().Retire(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return WithVmm("cuMemMap", [&](FakeProcess& process) {
    const auto it = process.shareables.find(handle);
    if (it == process.shareables.end()) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<Backing>& backing = it->second.backing;
    FakeMemory& memory = process.memory();
    if (offset != 0 || flags != 0 || bytes != backing->bytes() ||
        !memory.IsReserved(address, bytes) || memory.Overlaps(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool mapped =
        memory.Map(address, {.kind = MemoryKind::kMapped,
                             .device = process.DeviceOfGpu(backing->gpu()),
                             .bytes = bytes,
                             .accessible = false,
                             .backing = backing});
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return WithVmm("cuMemUnmap", [&](FakeProcess& process) {
    if (process.PendingUse({address, bytes})) {
      Illegal("cuMemUnmap: pending work uses the memory");
    }
    FakeMemory& memory = process.memory();
    return ForEachMapping(memory, address, bytes,
                          [&](auto region) { memory.Unmap(region); })
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                        const CUmemAccessDesc* access, size_t count) {
  return WithVmm("cuMemSetAccess", [&](FakeProcess& process) {
    for (size_t i = 0; i < count; ++i) {
      if (process.Device(access[i].location.id) == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
    return count != 0 && ForEachMapping(process.memory(), address, bytes,
                                        [](auto region) {
                                          region->second.accessible = true;
                                        })
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemExportToShareableHandle(void* out,
                                      CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  return WithVmm("cuMemExportToShareableHandle", [&](FakeProcess& process) {
    const auto it = process.shareables.find(handle);
    if (it == process.shareables.end() || !it->second.can_export ||
        flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int fd = fcntl(it->second.backing->fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(out) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                        void* from,
                                        CUmemAllocationHandleType type) {
  return WithVmm("cuMemImportFromShareableHandle", [&](FakeProcess& process) {
    if (process.config().vmm == FakeConfig::Vmm::kLies) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(from));
    Fd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!own.valid()) return CUDA_ERROR_INVALID_VALUE;
    auto backing = Backing::Open(std::move(own), Backing::kShareable);
    if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (process.DeviceOfGpu(backing->gpu()) < 0) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *handle = process.NewHandle<CUmemGenericAllocationHandle>();
    process.shareables[*handle] = {std::move(backing), true};
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

const std::vector<EntryPoint>& ShareableEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuMemGetAllocationGranularity", 10020,
            &Driver::cuMemGetAllocationGranularity,
            cuMemGetAllocationGranularity),
      Entry("cuMemCreate", 10020, &Driver::cuMemCreate, cuMemCreate),
      Entry("cuMemRelease", 10020, &Driver::cuMemRelease, cuMemRelease),
      Entry("cuMemAddressReserve", 10020, &Driver::cuMemAddressReserve,
            cuMemAddressReserve),
      Entry("cuMemAddressFree", 10020, &Driver::cuMemAddressFree,
            cuMemAddressFree),
      Entry("cuMemMap", 10020, &Driver::cuMemMap, cuMemMap),
      Entry("cuMemUnmap", 10020, &Driver::cuMemUnmap, cuMemUnmap),
      Entry("cuMemSetAccess", 10020, &Driver::cuMemSetAccess, cuMemSetAccess),
      Entry("cuMemExportToShareableHandle", 10020,
            &Driver::cuMemExportToShareableHandle,
            cuMemExportToShareableHandle),
      Entry("cuMemImportFromShareableHandle", 10020,
            &Driver::cuMemImportFromShareableHandle,
            cuMemImportFromShareableHandle),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
