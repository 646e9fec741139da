// Allocation: mapped device memory, allocated by this process or imported. It
// owns physical memory, a range of addresses and the mapping between them.
// Move-only; the destructor releases all three.
//
//   Allocation own = Allocation::Create(driver, device, bytes);   // or throws
//   own.address()
//
// Thread contract: a value; not synchronized. The device's context must be
// current.
//
// Invariants: before an Allocation is destroyed, the caller must wait for the
// device, so that no enqueued work uses the memory.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ALLOCATION_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ALLOCATION_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/backend/gpu/plugin/libraries.h"

namespace maypole::gpu::plugin {

// The properties of device memory that can be exported as a POSIX descriptor.
CUmemAllocationProp ExportableMemory(CUdevice device);

class Allocation {
 public:
  // `bytes` must be a multiple of the granularity.
  static Allocation Create(const DriverApi& driver, CUdevice device,
                           uint64_t bytes);
  static Allocation Import(const DriverApi& driver, CUdevice device, int fd,
                           uint64_t bytes);
  Allocation(Allocation&& o) noexcept
      : driver_(o.driver_),
        handle_(std::exchange(o.handle_, 0)),
        has_handle_(std::exchange(o.has_handle_, false)),
        address_(std::exchange(o.address_, 0)),
        bytes_(o.bytes_),
        mapped_(std::exchange(o.mapped_, false)),
        imported_(o.imported_) {}
  Allocation& operator=(Allocation&&) = delete;
  ~Allocation() { Release(); }

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // Returns a new close-on-exec descriptor. Throws for imported memory.
  int Export() const;
  // Releases everything, even after an error; returns the first error.
  CUresult Release();
  // Releases nothing: the memory lives until the process ends.
  void Abandon();

 private:
  Allocation(const DriverApi& driver, uint64_t bytes)
      : driver_(&driver), bytes_(bytes) {}
  // Reserves addresses and maps handle_ there, for this device.
  void Map(CUdevice device);

  const DriverApi* driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;
  CUdeviceptr address_ = 0;
  uint64_t bytes_ = 0;
  bool mapped_ = false;
  bool imported_ = false;
};

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ALLOCATION_H_
