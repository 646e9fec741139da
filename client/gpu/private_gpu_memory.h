// PrivateGpuMemory: GPU memory for results without a user's buffer, in a rank
// that calls NCCL itself.
//
// Purpose: the result of an allgather or alltoall needs memory before the user
// can allocate it, because its size is known only when all ranks have arrived.
// Blocks are cut from segments, which are kept, because an allocation may wait
// for all work on the GPU. If there is no memory, the user is told once per
// process and GPU, and the next attempt comes after
// SharedGpuMemory::kRetryAfter.
//
//   const PrivateGpuMemory::Block block = memory.Take(gpu, bytes);
//   if (block.address != 0) { ...; memory.Return(block); }
//
// Thread contract: all functions may be called by any thread. Return() does not
// call the driver.
//
// Invariants: a block is returned only when the GPU no longer uses it. The
// destructor frees a segment unless one of its blocks has not been returned:
// then it stays until the process ends. Segments of a GPU have at most the
// limit's bytes in total. Blocks begin at multiples of kGpuPlaceAlignment.
#ifndef MAYPOLE_CLIENT_GPU_PRIVATE_GPU_MEMORY_H_
#define MAYPOLE_CLIENT_GPU_PRIVATE_GPU_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "client/gpu/free_ranges.h"
#include "common/gpu/gpu.h"

namespace maypole {

class PrivateGpuMemory {
 public:
  struct Block {
    cuda::CUdeviceptr address = 0;  // 0: there is no block
    uint64_t bytes = 0;
  };

  // limit: bytes on each GPU; -1: an eighth of its memory.
  explicit PrivateGpuMemory(int64_t limit) : limit_(limit) {}
  ~PrivateGpuMemory();
  PrivateGpuMemory(const PrivateGpuMemory&) = delete;
  PrivateGpuMemory& operator=(const PrivateGpuMemory&) = delete;

  // There is no block if bytes is 0.
  Block Take(const cuda::Gpu& gpu, uint64_t bytes);
  void Return(const Block& block);

  bool unused() const;  // it has no segment

 private:
  struct Segment {
    const cuda::Gpu* gpu = nullptr;
    cuda::CUdeviceptr address = 0;
    uint64_t bytes = 0;
    FreeRanges free;
    uint64_t taken = 0;  // blocks
  };

  Block Find(const cuda::Gpu& gpu, uint64_t bytes);
  uint64_t BytesOf(const cuda::Gpu& gpu) const;
  uint64_t LimitOf(const cuda::Gpu& gpu) const;
  bool Grow(const cuda::Gpu& gpu, uint64_t bytes);

  const int64_t limit_;

  // Held over calls of the driver that may take long. Taken before mutex_.
  std::mutex grow_mutex_;
  std::chrono::steady_clock::time_point not_before_{};  // of the next attempt
  mutable std::mutex mutex_;
  std::vector<Segment> segments_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_PRIVATE_GPU_MEMORY_H_
