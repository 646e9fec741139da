// SharedMapping: memory of a GPU that this process and another one have mapped.
//
// Purpose: one class owns the driver's handles of both ways to share memory.
//
//   kDescriptor   Create(): this process allocates (cuMemCreate) and exports a
//                 descriptor, which the other process imports
//   kIpcHandle    Open(): the other process has allocated (cuMemAlloc); its
//                 handle is opened here
//
//   std::unique_ptr<SharedMapping> mapping;
//   Fd descriptor;
//   Status s = SharedMapping::Create(gpu, bytes, &mapping, &descriptor);
//
// Thread contract: constant once made; any thread may make and destroy it.
//
// Invariants: the memory is mapped while the object exists, whatever the other
// process does. It must not be destroyed while the GPU uses it: the driver may
// then wait for all work, or crash the context.
#ifndef MAYPOLE_CLIENT_GPU_SHARED_MAPPING_H_
#define MAYPOLE_CLIENT_GPU_SHARED_MAPPING_H_

#include <cstdint>
#include <memory>
#include <span>

#include "common/gpu/gpu.h"
#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

class SharedMapping {
 public:
  // The bytes of a mapping are a multiple of this; at least 2 MiB.
  static uint64_t Granularity(const cuda::Gpu& gpu);

  // kUnimplemented: the GPU cannot share memory by descriptors.
  // kResourceExhausted: the GPU has too little memory left.
  static Status Create(const cuda::Gpu& gpu, uint64_t bytes,
                       std::unique_ptr<SharedMapping>* out, Fd* descriptor);
  static Status Open(const cuda::Gpu& gpu, std::span<const uint8_t, 64> handle,
                     uint64_t bytes, std::unique_ptr<SharedMapping>* out);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  cuda::CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  SharedMapping(const cuda::Gpu& gpu, uint64_t bytes)
      : gpu_(gpu), bytes_(bytes) {}
  Status Map(cuda::CUmemGenericAllocationHandle handle);

  const cuda::Gpu& gpu_;
  const uint64_t bytes_;
  cuda::CUdeviceptr address_ = 0;
  bool reserved_ = false;  // cuMemAddressReserve
  bool mapped_ = false;    // cuMemMap
  bool opened_ = false;    // cuIpcOpenMemHandle
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_SHARED_MAPPING_H_
