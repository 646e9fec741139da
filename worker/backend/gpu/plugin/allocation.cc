#include "worker/backend/gpu/plugin/allocation.h"

#include <fcntl.h>

#include "worker/backend/gpu/plugin/cuda_failure.h"

namespace maypole::gpu::plugin {

CUmemAllocationProp ExportableMemory(CUdevice device) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

Allocation Allocation::Create(const DriverApi& driver, CUdevice device,
                              uint64_t bytes) {
  Allocation out(driver, bytes);
  const CUmemAllocationProp prop = ExportableMemory(device);
  Check(driver.mem_create(&out.handle_, bytes, &prop, 0), "cuMemCreate");
  out.has_handle_ = true;
  out.Map(device);
  return out;
}

Allocation Allocation::Import(const DriverApi& driver, CUdevice device, int fd,
                              uint64_t bytes) {
  Allocation out(driver, bytes);
  out.imported_ = true;
  // For a POSIX descriptor, the pointer argument holds the descriptor itself.
  void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
  Check(driver.mem_import(&out.handle_, os_handle,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  out.has_handle_ = true;
  out.Map(device);
  return out;
}

void Allocation::Map(CUdevice device) {
  Check(driver_->mem_address_reserve(&address_, bytes_, 0, 0, 0),
        "cuMemAddressReserve");
  Check(driver_->mem_map(address_, bytes_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(driver_->mem_set_access(address_, bytes_, &access, 1),
        "cuMemSetAccess");
}

int Allocation::Export() const {
  if (imported_) {
    throw FailedPrecondition(Hex(address_) +
                             " is imported: only its owner can export it");
  }
  int fd = -1;
  Check(driver_->mem_export(&fd, handle_,
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  // Otherwise a program that is started later would keep the memory alive.
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

CUresult Allocation::Release() {
  CUresult first = CUDA_SUCCESS;
  const auto note = [&first](CUresult result) {
    if (first == CUDA_SUCCESS) first = result;
  };
  if (std::exchange(mapped_, false)) {
    note(driver_->mem_unmap(address_, bytes_));
  }
  if (std::exchange(has_handle_, false)) note(driver_->mem_release(handle_));
  if (address_ != 0) {
    note(driver_->mem_address_free(std::exchange(address_, 0), bytes_));
  }
  return first;
}

void Allocation::Abandon() {
  mapped_ = false;
  has_handle_ = false;
  address_ = 0;
}

}  // namespace maypole::gpu::plugin
