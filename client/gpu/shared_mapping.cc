#include "client/gpu/shared_mapping.h"

#include <algorithm>
#include <cstring>

namespace maypole {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CurrentGpu;
using cuda::Driver;
using cuda::Gpu;

constexpr size_t kLeastGranularity = size_t{2} << 20;

cuda::CUmemAllocationProp Properties(const Gpu& gpu) {
  cuda::CUmemAllocationProp p = {};
  p.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, gpu.number()};
  return p;
}

bool Has(const Gpu& gpu, cuda::CUdevice_attribute attribute) {
  int value = 0;
  return gpu.driver().cuDeviceGetAttribute(&value, attribute, gpu.number()) ==
             CUDA_SUCCESS &&
         value != 0;
}

bool SharesByDescriptor(const Gpu& gpu) {
  return Has(gpu,
             cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
         Has(gpu,
             cuda::
                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

}  // namespace

uint64_t SharedMapping::Granularity(const Gpu& gpu) {
  const cuda::CUmemAllocationProp properties = Properties(gpu);
  size_t bytes = 0;
  if (gpu.driver().cuMemGetAllocationGranularity(
          &bytes, &properties, cuda::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
      CUDA_SUCCESS) {
    bytes = 0;
  }
  return std::max(bytes, kLeastGranularity);
}

Status SharedMapping::Create(const Gpu& gpu, uint64_t bytes,
                             std::unique_ptr<SharedMapping>* out,
                             Fd* descriptor) {
  const CurrentGpu current(gpu);
  const Driver& driver = gpu.driver();
  if (!SharesByDescriptor(gpu)) {
    return Status(Code::kUnimplemented,
                  "the GPU has no virtual memory management with descriptors");
  }
  const cuda::CUmemAllocationProp properties = Properties(gpu);
  cuda::CUmemGenericAllocationHandle handle = 0;
  Status s = gpu.Check(driver.cuMemCreate(&handle, bytes, &properties, 0),
                       "cuMemCreate");
  if (!s.ok()) return s;
  std::unique_ptr<SharedMapping> mapping(new SharedMapping(gpu, bytes));
  s = mapping->Map(handle);
  int fd = -1;
  if (s.ok()) {
    s = gpu.Check(
        driver.cuMemExportToShareableHandle(
            &fd, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  }
  driver.cuMemRelease(handle);  // the mapping and the descriptor keep it
  if (!s.ok()) return s;
  *descriptor = Fd(fd);
  *out = std::move(mapping);
  return Status();
}

Status SharedMapping::Map(cuda::CUmemGenericAllocationHandle handle) {
  const Driver& driver = gpu_.driver();
  Status s = gpu_.Check(driver.cuMemAddressReserve(&address_, bytes_, 0, 0, 0),
                        "cuMemAddressReserve");
  if (!s.ok()) return s;
  reserved_ = true;
  s = gpu_.Check(driver.cuMemMap(address_, bytes_, 0, handle, 0), "cuMemMap");
  if (!s.ok()) return s;
  mapped_ = true;
  const cuda::CUmemAccessDesc access = {
      {cuda::CU_MEM_LOCATION_TYPE_DEVICE, gpu_.number()},
      cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return gpu_.Check(driver.cuMemSetAccess(address_, bytes_, &access, 1),
                    "cuMemSetAccess");
}

Status SharedMapping::Open(const Gpu& gpu, std::span<const uint8_t, 64> handle,
                           uint64_t bytes,
                           std::unique_ptr<SharedMapping>* out) {
  const CurrentGpu current(gpu);
  cuda::CUipcMemHandle content;
  static_assert(sizeof(content) == handle.size());
  std::memcpy(&content, handle.data(), sizeof(content));
  std::unique_ptr<SharedMapping> mapping(new SharedMapping(gpu, bytes));
  const Status s = gpu.Check(
      gpu.driver().cuIpcOpenMemHandle(&mapping->address_, content,
                                      cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle");
  if (!s.ok()) return s;
  mapping->opened_ = true;
  *out = std::move(mapping);
  return Status();
}

SharedMapping::~SharedMapping() {
  const CurrentGpu current(gpu_);
  const Driver& driver = gpu_.driver();
  if (mapped_) driver.cuMemUnmap(address_, bytes_);
  if (reserved_) driver.cuMemAddressFree(address_, bytes_);
  if (opened_) driver.cuIpcCloseMemHandle(address_);
}

}  // namespace maypole
