// Arena: memory of one rank that the other ranks of its node map too.
//
// Purpose: if all ranks have their tensors of an in-place allreduce in their
// arenas, no copies are made: the owner of a slice reads the slice in every
// rank's tensor and writes the result to every rank's tensor.
//
// An arena is a part of the board's memory, mapped a second time, so that
// tensors outlive the board's mapping and the epoch. An empty arena costs only
// address space. Pages are reserved when they are allocated, so a shortage is
// an error of Allocate() and not a later SIGBUS.
//
// When an epoch ends while a peer may still be writing, Detach() replaces the
// pages by private copies; this rank never sees what the peer writes later.
//
// Thread contract: all functions may be called by any thread.
//
// Invariants: allocations are whole pages; addresses stay valid until Free().
#ifndef MAYPOLE_CLIENT_MEMORY_ARENA_H_
#define MAYPOLE_CLIENT_MEMORY_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/board/board.h"
#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

class Arena {
 public:
  // Maps the arena of local rank `local` and writes its limit on the board. If
  // address space is limited (ulimit -v), the arena is smaller than the board's
  // configuration says, and possibly empty. *out is null if the board has no
  // arenas.
  static Status Map(const Board& board, uint32_t local,
                    std::shared_ptr<Arena>* out);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, page aligned. kResourceExhausted: the arena or the machine's memory
  // is full.
  Status Allocate(uint64_t bytes, std::byte** out);
  // Frees what Allocate() has returned.
  void Free(std::byte* memory);

  // If the range lies in the arena and begins at a multiple of the slices'
  // alignment, returns true and sets *offset to its offset in the arena.
  bool Find(const std::byte* begin, uint64_t bytes, uint64_t* offset) const;

  // Makes the pages of the range private to this rank; their contents are kept.
  // The epoch is over: from now on Find() returns false.
  Status Detach(const std::byte* begin, uint64_t bytes);

  // The epoch is over, but nothing need be kept: as Detach() without copies.
  void EndSharing() { detached_.store(true); }

  // Called around a fork(), so that the child finds the arena as it was between
  // two calls.
  void BeforeFork() { mutex_.lock(); }
  void AfterFork() { mutex_.unlock(); }
  // For a forked child, before AfterFork(): from now on its writes are private.
  // Pages that it has not written to still show what the parent writes; pages
  // that are private already (copies, or the whole arena of a child that forks)
  // stay private.
  void BecomePrivate();

  bool detached() const { return detached_.load(); }
  uint64_t bytes() const { return mapping_.size(); }
  uint64_t allocated() const { return allocated_.load(); }

 private:
  Arena(Fd memory, Mapping mapping, uint64_t file_offset, uint64_t page,
        bool cut);
  std::string HowToGetMore() const;
  Status Reserve(uint64_t offset, uint64_t bytes);

  const Fd memory_;
  const Mapping mapping_;
  const uint64_t file_offset_;
  const uint64_t page_;
  const bool cut_;  // a limit of address space made the arena smaller
  std::atomic<bool> detached_{false};
  std::atomic<uint64_t> allocated_{0};

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, never adjacent
  std::map<uint64_t, uint64_t> used_;
  std::map<uint64_t, uint64_t> copies_;  // by Detach(), may overlap
  bool private_ = false;                 // by BecomePrivate()
};

// Allocates memory for the user: from the arena, or ordinary memory if `arena`
// is null. ReleaseMemory() frees memory of any client of this process.
Status AllocateMemory(const std::shared_ptr<Arena>& arena, uint64_t bytes,
                      void** memory);
Status ReleaseMemory(void* memory);
// Bytes that this process has allocated in arenas and not freed.
uint64_t AllocatedInArenas();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_MEMORY_ARENA_H_
