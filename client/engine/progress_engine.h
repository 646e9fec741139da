// ProgressEngine: executes one rank's operations in the order of the tickets.
//
// Purpose: takes tickets in ticket order and makes a run of each, which the
// ChunkMover moves through the board or this rank's GPU executes (RankGpuRuns).
// Ends runs and operations: by success, by a failure before any data moved, or
// by an abort. Skips the tickets of process sets that do not contain this rank.
//
// Progress: each step needs only earlier chunks or earlier steps of the same
// chunk, and all ranks share one ticket order, so some rank can always move
// (docs/board.md).
//
// A tensor on a GPU (Operation.gpu_place): if all ranks' tensors are there, the
// executor executes the operation and commits before it queues the ticket, and
// the result is on the GPU. (An allgather or alltoall over several nodes has
// the ticket of a run without bytes: RunSite::kExecutors.) Otherwise the run
// begins when this rank's input has been copied to host memory.
//
// Outcome: the first rank that sees the last chunk's result complete commits
// the run; an abort that came earlier fails it. Both call Board::Decide, so all
// ranks of the node report the same outcome.
//
// Thread contract: not synchronized, except for the functions marked "any
// thread". One thread at a time, the driver thread, may call the others. Step()
// never waits.
#ifndef MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
#define MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>

#include "client/engine/chunk_mover.h"
#include "client/engine/operation.h"
#include "client/engine/rank_gpu_runs.h"
#include "client/engine/run.h"
#include "client/engine/store_choice.h"
#include "client/engine/submitted_operations.h"
#include "common/board/board.h"

namespace maypole {

class ProgressEngine {
 public:
  ProgressEngine(const Board* board, uint32_t local_rank,
                 SubmittedOperations* table);

  // Does what can be done now, up to about ChunkMover::kStepBytes. False if
  // there was nothing to do.
  bool Step();

  // True if some of this rank's runs are on its GPU's stream. Any thread.
  bool has_enqueued() const { return gpu_runs_.any(); }

  // Position of the next ticket to take. Any thread.
  uint64_t cursor() const { return cursor_.load(std::memory_order_acquire); }

  // Skips the ticket at `position` if it is the next one, because its operation
  // has ended on this rank. Any thread.
  void Pass(uint64_t position) {
    cursor_.compare_exchange_strong(position, position + 1,
                                    std::memory_order_acq_rel);
  }

  // This rank has arrived at an operation that had already failed (a rank that
  // the operation needs has left): the next Step() checks for failures. Any
  // thread.
  void RecheckFailures() { recheck_.store(true, std::memory_order_release); }

  // Skips all queued tickets; allowed only while this rank has no operations.
  // Any thread.
  void SkipTickets();

 private:
  // How many runs may be in progress at once.
  static constexpr size_t kWindow = 16;

  bool TakeTickets();
  void TakeTicket(const Ticket& ticket);
  bool TakeEager(uint32_t slot, uint32_t generation);
  bool TakeFromGpu(uint32_t slot, uint32_t generation);
  bool TakeResult(uint32_t slot, uint32_t generation) {
    return TakeEager(slot, generation) || TakeFromGpu(slot, generation);
  }
  void SetOnGpu(Operation* operation) const;
  Run MakeSlotRun(RunRef ref, uint32_t generation);
  Run MakePlannedRun(RunRef ref);

  bool Advance(Run& run, bool may_stage);
  bool BringToHost(Run& run);
  void ChooseStore(Run& run);
  void RecordStore(const Run& run);
  void Retire(Run& run, bool aborted = false);
  bool RetireEnded();
  bool HandleFailures();
  bool HandleAbort();
  bool LeaveArena(Run& run);
  bool PeersHaveLeft(const Run& run);
  bool GpuIsIdle();
  Status AbortedStatus(const Run& run, const Operation& operation) const;
  Status FailedStatus(const Operation& operation) const;

  const Board* const board_;
  const uint32_t me_;
  SubmittedOperations* const table_;
  ChunkMover mover_;
  RankGpuRuns gpu_runs_;

  std::atomic<uint64_t> cursor_{0};
  std::deque<Run> active_;
  StoreChoice store_choice_;
  uint32_t failures_seen_ = 0;
  std::atomic<bool> recheck_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
