// Arena: memory of one rank that the other ranks of its node map too.
//
// Purpose: an allreduce in place on tensors that all ranks have in their arenas
// moves no copies: the owner of a slice reads it in every rank's tensor and
// writes the result to every rank's tensor. Each tensor stays its rank's own.
//
// A part of the board's memory, mapped a second time: so tensors outlive the
// board's mapping and the epoch. It costs address space only; pages are
// reserved when they are allocated, so that shortage is an error then and no
// SIGBUS later.
//
// When an epoch ends while a peer may still be writing, Detach() puts copies of
// the pages in their place: what the peer writes is never seen.
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
  // The part of local rank `local`, whose limit it writes on the board. Smaller
  // than the board says, and possibly empty, if there is a limit of address
  // space (ulimit -v). *out is null if the board has no arenas.
  static Status Map(const Board& board, uint32_t local,
                    std::shared_ptr<Arena>* out);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, page aligned. kResourceExhausted: the arena or the machine's memory
  // is full.
  Status Allocate(uint64_t bytes, std::byte** out);
  // What Allocate() has returned, once.
  void Free(std::byte* memory);

  // True if peers can find the range: *offset is its place in the arena. It
  // must be aligned as the slices are.
  bool Find(const std::byte* begin, uint64_t bytes, uint64_t* offset) const;

  // Takes the pages of the range away from the other ranks, contents kept.
  // From then on Find() finds nothing: the epoch is over.
  Status Detach(const std::byte* begin, uint64_t bytes);

  // In a forked child: its writes are its own from now on. Of pages that it has
  // not written to it sees what the parent makes of them.
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
  const bool cut_;  // by a limit of address space
  std::atomic<bool> detached_{false};
  std::atomic<uint64_t> allocated_{0};

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, never adjacent
  std::map<uint64_t, uint64_t> used_;
};

// What users hold, whichever client it came from: memory of an arena, or
// ordinary memory where there is none (arena null).
Status AllocateMemory(const std::shared_ptr<Arena>& arena, uint64_t bytes,
                      void** memory);
Status ReleaseMemory(void* memory);
uint64_t AllocatedInArenas();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_MEMORY_ARENA_H_
