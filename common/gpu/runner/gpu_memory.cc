#include "common/gpu/runner/gpu_memory.h"

#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/limits.h"
#include "common/wire/unix_socket.h"

namespace maypole {
namespace {

using cuda::CUresult;
using cuda::CurrentGpu;
using cuda::Gpu;

// The driver takes small memory from blocks of this size, and a handle exports
// the whole block.
constexpr uint64_t kIpcGranularity = uint64_t{2} << 20;

Status Check(const Gpu& gpu, CUresult result, std::string_view call) {
  return gpu.Check(result, call);
}

Status CheckBytes(uint64_t bytes) {
  if (bytes >= sizeof(uint64_t) && bytes <= kMaxGpuMemoryBytes) return {};
  return Status(Code::kInvalidArgument,
                "its size must be from " + std::to_string(sizeof(uint64_t)) +
                    " to " + std::to_string(kMaxGpuMemoryBytes) +
                    " bytes, but is " + std::to_string(bytes));
}

cuda::CUmemLocation LocationOf(const Gpu& gpu) {
  return {cuda::CU_MEM_LOCATION_TYPE_DEVICE, gpu.number()};
}

Status CheckGranularity(const Gpu& gpu, uint64_t bytes) {
  cuda::CUmemAllocationProp properties = {};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes =
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = LocationOf(gpu);
  size_t granularity = 0;
  const Status s = Check(
      gpu,
      gpu.driver().cuMemGetAllocationGranularity(
          &granularity, &properties, cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity");
  if (!s.ok()) return s;
  if (granularity != 0 && bytes % granularity == 0) return {};
  return Status(Code::kInvalidArgument, "its size must be a multiple of " +
                                            std::to_string(granularity) +
                                            " bytes, but is " +
                                            std::to_string(bytes));
}

}  // namespace

StatusOr<GpuMemory> GpuMemory::Import(const Gpu& gpu, Fd descriptor,
                                      uint64_t bytes) {
  if (!descriptor.valid()) {
    return Status(Code::kInvalidArgument, "its descriptor did not come");
  }
  GpuMemory memory(gpu, bytes);
  const CurrentGpu current(gpu);
  Status s = current.status();
  if (s.ok()) s = CheckBytes(bytes);
  if (s.ok()) s = CheckGranularity(gpu, bytes);
  if (s.ok()) s = memory.Map(descriptor.get());
  if (s.ok()) s = memory.CheckPlace();
  // The rank may have sent any descriptor.
  std::vector<Fd> unasked;
  unasked.push_back(std::move(descriptor));
  CloseUnasked(std::move(unasked));
  if (!s.ok()) return s;
  return memory;
}

Status GpuMemory::Map(int descriptor) {
  const cuda::Driver& driver = gpu_->driver();
  Status s = Check(
      *gpu_,
      driver.cuMemImportFromShareableHandle(
          &handle_, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
          cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  if (!s.ok()) return s;
  imported_ = true;
  s = Check(*gpu_, driver.cuMemAddressReserve(&address_, bytes_, 0, 0, 0),
            "cuMemAddressReserve");
  if (!s.ok()) {
    address_ = 0;
    return s;
  }
  // Fails if the rank's memory is smaller.
  s = Check(*gpu_, driver.cuMemMap(address_, bytes_, 0, handle_, 0),
            "cuMemMap");
  if (!s.ok()) {
    return Status(s.code(), s.message() + ", for a size of " +
                                std::to_string(bytes_) + " bytes");
  }
  mapped_ = true;
  const cuda::CUmemAccessDesc access = {
      LocationOf(*gpu_), cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return Check(*gpu_, driver.cuMemSetAccess(address_, bytes_, &access, 1),
               "cuMemSetAccess");
}

// Another GPU's memory could also be mapped, but the rank has promised this
// one's.
Status GpuMemory::CheckPlace() const {
  int ordinal = -1;
  cuda::CUpointer_attribute attribute =
      cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  void* value = &ordinal;
  if (gpu_->driver().cuPointerGetAttributes(1, &attribute, &value, address_) !=
          cuda::CUDA_SUCCESS ||
      ordinal == gpu_->ordinal()) {
    return {};
  }
  return Status(Code::kInvalidArgument,
                "it is not on the GPU that the rank named, " + gpu_->uuid());
}

StatusOr<GpuMemory> GpuMemory::Allocate(const Gpu& gpu, uint64_t bytes) {
  GpuMemory memory(gpu, bytes);
  const CurrentGpu current(gpu);
  Status s = current.status();
  if (s.ok()) s = CheckBytes(bytes);
  if (s.ok()) s = memory.AllocateAndExport();
  if (!s.ok()) return s;
  return memory;
}

Status GpuMemory::AllocateAndExport() {
  const uint64_t blocks = (bytes_ + kIpcGranularity - 1) / kIpcGranularity;
  const Status s = Check(
      *gpu_, gpu_->driver().cuMemAlloc(&address_, blocks * kIpcGranularity),
      "cuMemAlloc");
  if (!s.ok()) return s;
  allocated_ = true;
  return Check(*gpu_, gpu_->driver().cuIpcGetMemHandle(&ipc_handle_, address_),
               "cuIpcGetMemHandle");
}

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  gpu_ = std::exchange(other.gpu_, nullptr);
  bytes_ = other.bytes_;
  address_ = other.address_;
  allocated_ = other.allocated_;
  ipc_handle_ = other.ipc_handle_;
  imported_ = other.imported_;
  mapped_ = other.mapped_;
  handle_ = other.handle_;
  return *this;
}

// Errors say nothing here: after an error of the device these calls also fail.
void GpuMemory::Release() {
  const Gpu* const gpu = std::exchange(gpu_, nullptr);
  if (gpu == nullptr) return;
  const CurrentGpu current(*gpu);
  const cuda::Driver& driver = gpu->driver();
  if (allocated_) {
    driver.cuMemFree(address_);
    return;
  }
  if (mapped_) driver.cuMemUnmap(address_, bytes_);
  if (imported_) driver.cuMemRelease(handle_);
  if (address_ != 0) driver.cuMemAddressFree(address_, bytes_);
}

}  // namespace maypole
