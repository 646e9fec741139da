// The driver's functions for memory: the device's, the host's, and legacy IPC.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

using Iterator = FakeMemory::Regions::iterator;

constexpr uint64_t kIpcMagic = 0x656b61662d697063;  // "cpi-fake"

// What a CUipcMemHandle contains.
struct IpcHandle {
  uint64_t magic;
  uint64_t start_time;  // of the process
  uint64_t identity;    // of the memory
  int32_t process;
  int32_t fd;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));

// Sets `it` to the region that begins at the address; false if there is none of
// this kind.
bool Find(Call& call, CUdeviceptr address, MemoryKind kind, Iterator& it) {
  auto& regions = call.process.memory().regions();
  it = regions.find(address);
  return it != regions.end() && it->second.kind == kind;
}

// As the driver does, waits for all work before memory goes.
CUresult Free(Call& call, CUdeviceptr address, MemoryKind kind) {
  Iterator it;
  if (!Find(call, address, kind, it)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = call.process.WaitForAll(call.held)) return error;
  if (!Find(call, address, kind, it)) return CUDA_ERROR_INVALID_VALUE;
  if (it->second.on_host()) {
    munmap(it->second.host, it->second.bytes);
    call.process.memory().Unmap(it);
  } else {
    call.process.memory().UnmapNew(it);
  }
  return CUDA_SUCCESS;
}

CUresult AddHostMemory(Call& call, MemoryKind kind, void* memory,
                       size_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (call.process.memory().Overlaps(address, bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  call.process.memory().Map(address, {.kind = kind,
                                      .device = call.context.device,
                                      .bytes = bytes,
                                      .host = static_cast<std::byte*>(memory)});
  return CUDA_SUCCESS;
}

// Writes the attribute's value. The region is null if the memory is unknown:
// then all attributes are zero.
bool WriteAttribute(CUpointer_attribute attribute, void* value,
                    const FakeMemory::Regions::value_type* found) {
  const Region* const region = found == nullptr ? nullptr : &found->second;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      unsigned& type = *static_cast<unsigned*>(value);
      if (region == nullptr) {
        type = 0;
      } else {
        type = region->on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      }
      return true;
    }
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<bool*>(value) = false;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = region == nullptr ? 0 : region->device;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = found == nullptr ? 0 : found->first;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = region == nullptr ? 0 : region->bytes;
      return true;
  }
  return false;
}

// The memory that the handle of another process names; null if it names none.
std::shared_ptr<Backing> OpenIpc(const IpcHandle& handle) {
  if (handle.magic != kIpcMagic || handle.process <= 0 ||
      ProcessStartTime(handle.process) != handle.start_time) {
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" +
                           std::to_string(handle.fd);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return nullptr;
  auto backing = Backing::Open(std::move(fd), Backing::kAllocation);
  if (backing && backing->identity() != handle.identity) return nullptr;
  return backing;
}

// The region where this process has opened the memory already.
Iterator FindOpened(FakeMemory& memory, uint64_t identity) {
  auto it = memory.regions().begin();
  while (it != memory.regions().end() &&
         (it->second.kind != MemoryKind::kOpened ||
          it->second.backing->identity() != identity)) {
    ++it;
  }
  return it;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return InContext("cuMemGetInfo", InCapture::kAllowed, [&](Call& call) {
    *total = call.process.config().memory;
    *free = *total - call.process.state().Used(call.context.gpu);
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                void** values, CUdeviceptr address) {
  return InProcess("cuPointerGetAttributes", [&](FakeProcess& process, auto&) {
    FakeMemory& memory = process.memory();
    const auto it = memory.Containing(address);
    const auto* found = it == memory.regions().end() ? nullptr : &*it;
    for (unsigned i = 0; i < count; ++i) {
      if (!WriteAttribute(attributes[i], values[i], found)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return InContext("cuMemAlloc", InCapture::kUnsafe, [&](Call& call) {
    if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    auto backing =
        Backing::Create(call.process.state(), call.process.config().memory,
                        call.context.gpu, bytes, Backing::kAllocation);
    if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = call.process.memory().MapNew({.kind = MemoryKind::kAllocated,
                                             .device = call.context.device,
                                             .bytes = bytes,
                                             .backing = std::move(backing)});
    return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return InContext("cuMemFree", InCapture::kUnsafe, [&](Call& call) {
    if (address == 0) return CUDA_SUCCESS;
    return Free(call, address, MemoryKind::kAllocated);
  });
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return InContext("cuMemHostAlloc", InCapture::kUnsafe, [&](Call& call) {
    if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    return AddHostMemory(call, MemoryKind::kPinned, *memory, bytes);
  });
}

CUresult cuMemFreeHost(void* memory) {
  return InContext("cuMemFreeHost", InCapture::kUnsafe, [&](Call& call) {
    if (memory == nullptr) return CUDA_SUCCESS;
    return Free(call, reinterpret_cast<CUdeviceptr>(memory),
                MemoryKind::kPinned);
  });
}

CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  return InContext("cuMemHostRegister", InCapture::kUnsafe, [&](Call& call) {
    if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return AddHostMemory(call, MemoryKind::kRegistered, memory, bytes);
  });
}

CUresult cuMemHostUnregister(void* memory) {
  return InContext("cuMemHostUnregister", InCapture::kUnsafe, [&](Call& call) {
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    Iterator it;
    if (!Find(call, address, MemoryKind::kRegistered, it)) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    if (call.process.PendingUse({address, it->second.bytes})) {
      Illegal("cuMemHostUnregister: pending work uses the memory");
    }
    call.process.memory().Unmap(it);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory,
                                      unsigned) {
  return InContext("cuMemHostGetDevicePointer", InCapture::kAllowed,
                   [&](Call& call) {
                     FakeMemory& known = call.process.memory();
                     const auto host = reinterpret_cast<CUdeviceptr>(memory);
                     const auto it = known.Containing(host);
                     if (it == known.regions().end() || !it->second.on_host()) {
                       return CUDA_ERROR_INVALID_VALUE;
                     }
                     *address = host;
                     return CUDA_SUCCESS;
                   });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return InContext("cuIpcGetMemHandle", InCapture::kAllowed, [&](Call& call) {
    if (!call.process.config().ipc) return CUDA_ERROR_NOT_SUPPORTED;
    FakeMemory& memory = call.process.memory();
    const auto it = memory.Containing(address);
    if (it == memory.regions().end() ||
        it->second.kind != MemoryKind::kAllocated) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const IpcHandle content = {kIpcMagic, ProcessStartTime(getpid()),
                               it->second.backing->identity(), getpid(),
                               it->second.backing->fd()};
    *handle = {};
    std::memcpy(handle, &content, sizeof(content));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                               unsigned) {
  return InContext("cuIpcOpenMemHandle", InCapture::kUnsafe, [&](Call& call) {
    if (!call.process.config().ipc) return CUDA_ERROR_NOT_SUPPORTED;
    IpcHandle content;
    std::memcpy(&content, &handle, sizeof(content));
    if (content.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    auto backing = OpenIpc(content);
    if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const int device = call.process.DeviceOfGpu(backing->gpu());
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    FakeMemory& memory = call.process.memory();
    const auto opened = FindOpened(memory, content.identity);
    if (opened != memory.regions().end()) {
      ++opened->second.opened;
      *address = opened->first;
      return CUDA_SUCCESS;
    }
    const size_t bytes = backing->bytes();
    *address = memory.MapNew({.kind = MemoryKind::kOpened,
                              .device = device,
                              .bytes = bytes,
                              .backing = std::move(backing)});
    return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return InContext("cuIpcCloseMemHandle", InCapture::kUnsafe, [&](Call& call) {
    Iterator it;
    if (!Find(call, address, MemoryKind::kOpened, it)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (it->second.opened > 1) {
      --it->second.opened;
      return CUDA_SUCCESS;
    }
    return Free(call, address, MemoryKind::kOpened);
  });
}

// For test programs that play the part of a kernel: where the process can
// access the memory. Null if the address is not of the device or registered.
void* fakeCudaHostView(CUdeviceptr address) {
  FakeProcess& process = FakeProcess::Get();
  FakeProcess::Held held(process.mutex());
  const Place place = process.memory().Where(address, 1);
  return place.kind == Place::kKnown ? place.data : nullptr;
}

}  // extern "C"

const std::vector<EntryPoint>& MemoryEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuMemGetInfo", 3020, &Driver::cuMemGetInfo, cuMemGetInfo_v2),
      Entry("cuPointerGetAttributes", 7000, &Driver::cuPointerGetAttributes,
            cuPointerGetAttributes),
      Entry("cuMemAlloc", 3020, &Driver::cuMemAlloc, cuMemAlloc_v2),
      Entry("cuMemFree", 3020, &Driver::cuMemFree, cuMemFree_v2),
      Entry("cuMemHostAlloc", 2020, &Driver::cuMemHostAlloc, cuMemHostAlloc),
      Entry("cuMemFreeHost", 2000, &Driver::cuMemFreeHost, cuMemFreeHost),
      Entry("cuMemHostRegister", 4000, &Driver::cuMemHostRegister,
            cuMemHostRegister_v2),
      Entry("cuMemHostUnregister", 4000, &Driver::cuMemHostUnregister,
            cuMemHostUnregister),
      Entry("cuMemHostGetDevicePointer", 3020,
            &Driver::cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2),
      Entry("cuIpcGetMemHandle", 4010, &Driver::cuIpcGetMemHandle,
            cuIpcGetMemHandle),
      Entry("cuIpcOpenMemHandle", 4010, &Driver::cuIpcOpenMemHandle,
            cuIpcOpenMemHandle_v2),
      Entry("cuIpcCloseMemHandle", 4010, &Driver::cuIpcCloseMemHandle,
            cuIpcCloseMemHandle),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
