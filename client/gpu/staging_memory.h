// StagingMemory: host memory that holds GPU tensors while the CPU path works on
// them.
//
// Purpose: blocks of page-locked memory, so that the GPU copies at full speed
// and asynchronously. They lie in the rank's arena while it has room: then the
// other ranks of the node reduce them in place, and the only copies are from
// and to the GPU.
//
//   StagingMemory memory(driver, arena);
//   StagingMemory::Block block;
//   Status s = memory.Take(bytes, &block);
//   memory.Return(block);          // when neither GPU nor ranks use it
//
// Blocks of up to kLargestSmall are powers of two cut from slabs; larger ones
// are allocations of their own, in steps of kLargeStep. Returned blocks are
// kept for the next Take(), so a training allocates only in its first step. If
// sizes change so that no kept block fits, kept large blocks are freed once
// their bytes exceed both the bytes in use and kKeptAtLeast.
//
// Freeing page-locked memory may wait for all work of the process on its GPUs,
// without limit. So a separate thread frees memory; only the destructor, and
// Take() before it gives up, free it themselves.
//
// Thread contract: all functions may be called by any thread.
//
// Invariants: blocks are aligned to kBlockAlignment and do not overlap. A
// device context must be current in Take().
#ifndef MAYPOLE_CLIENT_GPU_STAGING_MEMORY_H_
#define MAYPOLE_CLIENT_GPU_STAGING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "client/memory/arena.h"
#include "common/gpu/driver.h"
#include "common/status.h"

namespace maypole {

class StagingMemory {
 public:
  static constexpr uint64_t kSlabBytes = uint64_t{4} << 20;
  static constexpr uint64_t kLargestSmall = kSlabBytes / 8;
  static constexpr uint64_t kLargeStep = uint64_t{2} << 20;
  static constexpr uint64_t kKeptAtLeast = uint64_t{64} << 20;
  static constexpr uint64_t kBlockAlignment = 256;

  struct Block {
    std::byte* data = nullptr;
    uint64_t bytes = 0;  // of the whole block
  };

  // arena may be null.
  StagingMemory(const cuda::Driver& driver, std::shared_ptr<Arena> arena)
      : driver_(driver), arena_(std::move(arena)) {}
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // kResourceExhausted: there is no page-locked memory of this size.
  Status Take(uint64_t bytes, Block* block);
  void Return(const Block& block);
  // A GPU may write to a block that is not returned, for an unknown time: the
  // destructor frees nothing.
  void NeverFree();

  uint64_t allocated() const;  // bytes, in use or kept

 private:
  struct Allocation {
    std::byte* data;
    uint64_t bytes;
    bool in_arena;
  };

  Status TakeSmall(uint64_t bytes, Block* block);
  Status TakeLarge(uint64_t bytes, Block* block);
  Status Allocate(uint64_t bytes, std::byte** data);
  bool AllocateInArena(uint64_t bytes, std::byte** data);
  std::vector<Allocation> TakeKeptLarge();
  void FreeInBackground(std::vector<Allocation> allocations);
  static void Free(const cuda::Driver& driver, Arena* arena,
                   const std::vector<Allocation>& allocations);

  const cuda::Driver& driver_;
  const std::shared_ptr<Arena> arena_;

  mutable std::mutex mutex_;
  std::multimap<uint64_t, std::byte*> kept_;  // free blocks by size
  uint64_t kept_large_ = 0;                   // bytes of the large ones
  std::byte* slab_ = nullptr;                 // the rest of the newest slab
  uint64_t slab_left_ = 0;
  std::map<std::byte*, Allocation> allocations_;
  uint64_t allocated_ = 0;
  bool never_free_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGING_MEMORY_H_
