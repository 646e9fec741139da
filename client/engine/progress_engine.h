// ProgressEngine: moves one rank's data through the board.
//
// Purpose: the client's pure core. It takes the tickets of its rank in ticket
// order and, chunk by chunk, stages what others need, reduces its own slice and
// delivers results to its rank's private memory. Nobody else touches that
// memory, but for arena tensors (client/memory/arena.h), of which each rank
// reduces its slice in place, for all.
//
//   stage(c)    needs a free place of the own ring: every local rank has
//               consumed the chunk that lay there before. Copies the slices
//               that others own (all, when there is a prescale factor).
//   reduce(c)   needs stage(c) of every local rank and, if the run spans
//               nodes, a granted place of the node ring. Result: to the own
//               output and over what the next rank has staged of this slice,
//               or to the node ring.
//   consume(c)  needs reduce(c) of every local rank, or the network stage.
//               Copies to the output.
// Gathering kinds (broadcast, allgather, alltoall) have no reduce: who owns
// bytes of a chunk stages them, everybody consumes when the owners have staged.
// "Every local rank" is every one in the run's process set; the others pass its
// ticket.
//
// Progress: each of these needs only earlier chunks or earlier stages of the
// same chunk, in the one ticket order that all ranks share, so some rank can
// always move (docs/board.md).
//
// Outcome: whoever sees the last chunk's result complete commits the run; an
// abort that came first fails it. Both go through Board::Decide, so all ranks
// of the node tell the same.
//
// progress_engine.cc moves, progress_engine_ends.cc ends.
//
// Thread contract: not synchronized; the client lets one thread at a time in.
// Step() never waits.
#ifndef MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
#define MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "client/engine/operation.h"
#include "client/engine/run.h"
#include "common/board/board.h"
#include "common/reduce/reduce.h"

namespace maypole {

// The rank's submitted operations, as the progress engine sees them. Called by
// the thread that drives the progress engine.
class SubmittedOperations {
 public:
  virtual ~SubmittedOperations() = default;
  // The operation that has arrived at this generation of the slot; from now on
  // it no longer waits. Null if it has ended meanwhile (abort).
  virtual Operation* Claim(uint32_t slot, uint32_t generation) = 0;
  // The generation at which this rank has arrived in the slot and waits for a
  // ticket; 0 if none.
  virtual uint32_t WaitingGeneration(uint32_t slot) = 0;
  // The operation has ended.
  virtual void Finish(Operation* operation, Status status) = 0;
  // All operations that have arrived and wait for a ticket.
  virtual std::vector<Operation*> Waiting() = 0;
  // An abort has come so long ago that who has not left a run by now is stuck.
  virtual bool PatienceIsOver() = 0;
  // Peers may still write to the operation's arena tensor: nobody is to see it.
  virtual void Detach(Operation* operation) = 0;
  // A steady clock's nanoseconds.
  virtual int64_t Now() = 0;
  // This rank cannot go on (no memory for a result): leave the job, so that
  // the executor ends the epoch for all.
  virtual void Break(Status status) = 0;
};

class ProgressEngine {
 public:
  ProgressEngine(const Board* board, uint32_t local_rank,
                 SubmittedOperations* table);

  // Does what can be done now, but moves about kStepBytes at most: the driver
  // looks at its clock between steps. False if there was nothing to do.
  bool Step();
  static constexpr uint64_t kStepBytes = 8 << 20;

  // Position of the next ticket to take. May be read by any thread.
  uint64_t cursor() const { return cursor_.load(std::memory_order_acquire); }

  // Passes the ticket at `position`, if that is the next one, for its operation
  // has ended on this rank. By any thread.
  void Pass(uint64_t position) {
    cursor_.compare_exchange_strong(position, position + 1,
                                    std::memory_order_acq_rel);
  }

  // The rank has arrived at an operation that had failed before (a rank that
  // it needs has left): the next Step() looks. By any thread.
  void RecheckFailures() { recheck_.store(true, std::memory_order_release); }

  // Passes all tickets that are there; while this rank has no operation. By any
  // thread.
  void SkipTickets();

 private:
  // Runs in progress at once.
  static constexpr size_t kWindow = 16;

  // Which chunk lies in a place of the own ring.
  struct Occupant {
    RunRef ref = 0;
    uint32_t generation = 0;
    uint32_t chunk = 0;
    uint64_t members = 0;
  };

  bool TakeTickets();
  void TakeTicket(const Ticket& ticket);
  bool TakeEager(uint32_t slot, uint32_t generation);
  Run MakeSlotRun(RunRef ref, uint32_t generation);
  Run MakePlannedRun(RunRef ref);

  // False: this step has moved its bytes.
  bool MayMove() const { return moved_bytes_ < kStepBytes; }
  bool Advance(Run& run, bool may_stage);
  bool TryStage(Run& run);
  bool TryReduce(Run& run);
  bool TryConsume(Run& run);
  bool Commit(Run& run);
  void Retire(Run& run, bool aborted = false);
  bool RetireEnded();
  bool HandleFailures();
  bool HandleAbort();
  void ChooseStore(Run& run);
  void RecordStore(const Run& run);
  bool LeaveArena(Run& run);
  bool PeersHaveLeft(const Run& run);

  bool PlaceIsFree(uint32_t index) const;
  bool ResultReady(const Run& run, uint32_t chunk) const;
  bool AllStaged(const Run& run, uint32_t chunk) const;
  bool OwnersStaged(const Run& run, const Range& chunk) const;
  std::byte* StagedChunk(const Run& run, uint32_t local, uint32_t chunk) const;
  uint32_t HolderOf(const Run& run, uint32_t slice) const;
  std::byte* NodeChunk(const Run& run, uint32_t chunk) const;
  void StageReduction(const Run& run, const Range& chunk, std::byte* place);
  void StageGathered(const Run& run, const Range& chunk, std::byte* place);
  void ReduceInArena(const Run& run, const Range& chunk, uint32_t number);
  Epilogue EpilogueOf(const Run& run) const;
  void ReduceSlice(const Run& run, const Range& chunk, uint32_t number);
  void DeliverReduced(const Run& run, const Range& chunk, uint32_t number);
  void Deliver(const Run& run, const Range& range, const std::byte* from);
  void PublishStaged(const Run& run);
  // for_network: the executor waits for it too, if the run spans nodes.
  void Publish(std::atomic<uint64_t>& word, const Run& run, uint32_t count,
               bool for_network = true);
  Status AbortedStatus(const Run& run, const Operation& operation) const;
  Status FailedStatus(const Operation& operation) const;

  const Board* const board_;
  const uint32_t me_;
  const uint32_t depth_;
  SubmittedOperations* const table_;

  std::atomic<uint64_t> cursor_{0};
  std::deque<Run> active_;
  std::vector<Occupant> places_;
  uint64_t next_place_ = 0;
  StoreChoice store_choice_;
  uint64_t moved_bytes_ = 0;  // in this step
  uint32_t failures_seen_ = 0;
  std::atomic<bool> recheck_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
