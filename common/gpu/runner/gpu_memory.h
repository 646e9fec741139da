// GpuMemory: memory of a GPU that a rank and its executor share.
//
// Purpose: owns the executor's side of it, in one of two ways:
//
//   Import()    the rank's memory (cuMemCreate), mapped here. The rank has sent
//               its descriptor
//   Allocate()  the executor's memory (cuMemAlloc), which the rank opens by its
//               IPC handle
//
//   StatusOr<GpuMemory> memory =
//       GpuMemory::Import(gpu, std::move(descriptor), bytes);
//   memory->address();
//
// Thread contract: values; not synchronized. The GPU need not be the thread's
// current one.
//
// Invariants: the destructor releases the memory, so no work may use it then.
// If release_waits(), the driver may wait there for all work of this process on
// the GPU.
//
// Hostility: the number of bytes and the descriptor come from a rank. Whatever
// they are, the result is memory of `bytes` bytes on `gpu` or an error of one
// line.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORY_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORY_H_

#include <cstdint>
#include <utility>

#include "common/gpu/gpu.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/system/fd.h"

namespace maypole {

class GpuMemory {
 public:
  static StatusOr<GpuMemory> Import(const cuda::Gpu& gpu, Fd descriptor,
                                    uint64_t bytes);
  static StatusOr<GpuMemory> Allocate(const cuda::Gpu& gpu, uint64_t bytes);

  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  ~GpuMemory() { Release(); }

  cuda::CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // Of Allocate(); zeros otherwise.
  const cuda::CUipcMemHandle& ipc_handle() const { return ipc_handle_; }
  bool release_waits() const { return allocated_; }

 private:
  explicit GpuMemory(const cuda::Gpu& gpu, uint64_t bytes)
      : gpu_(&gpu), bytes_(bytes) {}
  Status Map(int descriptor);
  Status CheckPlace() const;
  Status AllocateAndExport();
  void Release();

  const cuda::Gpu* gpu_ = nullptr;  // null: has been moved from
  uint64_t bytes_ = 0;
  cuda::CUdeviceptr address_ = 0;
  bool allocated_ = false;
  cuda::CUipcMemHandle ipc_handle_ = {};
  // Import() only.
  bool imported_ = false;
  bool mapped_ = false;
  cuda::CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORY_H_
