// ProgressEngine: moves one rank's data through the board.
//
// Purpose: the client's pure core. It takes tickets in ticket order. For each
// chunk of a run it stages what other ranks need, reduces this rank's slice and
// delivers the result to this rank's private memory. No other rank touches that
// memory, except arena tensors (client/memory/arena.h): there each rank reduces
// its slice in place in all ranks' tensors.
//
//   stage(c)    needs a free place in this rank's ring: every local rank has
//               consumed the chunk that was there before. Copies the slices
//               that others own (all slices if there is a prescale factor).
//   reduce(c)   needs stage(c) of every local rank and, if the run spans
//               nodes, a granted place of the node ring. The result goes to
//               this rank's output and over the next rank's staged copy of the
//               slice, or to the node ring.
//   consume(c)  needs reduce(c) of every local rank or, across nodes, the
//               network's result. Copies the chunk to the output.
// Gathering kinds (broadcast, allgather, alltoall) have no reduce step: the
// owners of a chunk's bytes stage them, and all ranks consume the chunk when
// the owners have staged it. "Every local rank" means those in the run's
// process set; the others skip its ticket.
//
// Progress: each step needs only earlier chunks or earlier steps of the same
// chunk, and all ranks share one ticket order, so some rank can always move
// (docs/board.md).
//
// A tensor on a GPU (Operation.gpu_place): if all ranks have theirs there, the
// executor executes the operation and commits before it places the ticket, and
// the result is there. (The ticket of an allgather or alltoall over several
// nodes is that of a run without bytes: RunSite::kExecutors.) Otherwise the run
// begins when this rank's input has been copied to host memory.
//
// A run of the ranks' GPUs (RunSite::kRanks) is passed on when its ticket is
// taken (StagedTensor::BeginOnRank). For this rank it ends when its part is on
// its GPU's stream; no rank commits it for others. The engine looks at it until
// its end: if it fails there, the job must end.
//
// Outcome: the first rank that sees the last chunk's result complete commits
// the run; an abort that came earlier fails it. Both call Board::Decide, so all
// ranks of the node report the same outcome.
//
// progress_engine.cc moves data; progress_engine_ranks.cc has the runs of the
// ranks' GPUs; progress_engine_ends.cc ends runs and operations.
//
// Thread contract: not synchronized, except for the functions marked "any
// thread". One thread at a time, the driver thread, may call the others. Step()
// never waits.
#ifndef MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
#define MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "client/engine/operation.h"
#include "client/engine/run.h"
#include "common/board/board.h"
#include "common/reduce/reduce.h"

namespace maypole {

// The rank's submitted operations, as the progress engine sees them. The driver
// thread calls all functions.
class SubmittedOperations {
 public:
  virtual ~SubmittedOperations() = default;
  // Returns the operation that has arrived at this generation of the slot; it
  // no longer waits for a ticket. Null if it has ended meanwhile (abort).
  virtual Operation* Claim(uint32_t slot, uint32_t generation) = 0;
  // The generation at which this rank has arrived in the slot and waits for a
  // ticket; 0 if there is none.
  virtual uint32_t WaitingGeneration(uint32_t slot) = 0;
  // Ends the operation.
  virtual void Finish(Operation* operation, Status status) = 0;
  // All operations that have arrived and wait for a ticket.
  virtual std::vector<Operation*> Waiting() = 0;
  // True if an abort came so long ago that a rank still in a run must be stuck.
  virtual bool AbortIsOverdue() = 0;
  // Makes the operation's arena tensor private to this rank, because peers may
  // still write to it.
  virtual void Detach(Operation* operation) = 0;
  // A steady clock, in nanoseconds.
  virtual int64_t Now() = 0;
  // This rank cannot continue (no memory for a result): leaves the job, so that
  // the executor ends the epoch for all ranks.
  virtual void GiveUp(Status status) = 0;
};

class ProgressEngine {
 public:
  ProgressEngine(const Board* board, uint32_t local_rank,
                 SubmittedOperations* table);

  // Does what can be done now, but moves only about kStepBytes, because the
  // driver thread checks its clock between steps. False if there was nothing to
  // do.
  bool Step();
  static constexpr uint64_t kStepBytes = 8 << 20;

  // Some of this rank's runs are on its GPU's stream. Any thread.
  bool has_enqueued() const { return enqueued_count_.load() > 0; }

  // Position of the next ticket to take. Any thread.
  uint64_t cursor() const { return cursor_.load(std::memory_order_acquire); }

  // Skips the ticket at `position` if it is the next one, because its operation
  // has ended on this rank. Any thread.
  void Pass(uint64_t position) {
    cursor_.compare_exchange_strong(position, position + 1,
                                    std::memory_order_acq_rel);
  }

  // This rank has arrived at an operation that had already failed (a rank that
  // it needs has left): the next Step() checks for failures. Any thread.
  void RecheckFailures() { recheck_.store(true, std::memory_order_release); }

  // Skips all tickets that have been placed; allowed only while this rank has
  // no operations. Any thread.
  void SkipTickets();

 private:
  // How many runs may be in progress at once.
  static constexpr size_t kWindow = 16;

  // The chunk in a place of this rank's ring.
  struct Occupant {
    RunRef ref = 0;
    uint32_t generation = 0;
    uint32_t chunk = 0;
    uint64_t members = 0;
  };

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

  // False if this step has moved kStepBytes.
  bool MayMove() const { return moved_bytes_ < kStepBytes; }
  bool Advance(Run& run, bool may_stage);
  bool BringToHost(Run& run);
  void BeginOnRank(Run& run);
  bool AdvanceOnRank(Run& run);
  bool AwaitCause(const Status& error, int64_t* failed_at);
  void RetireOnRank(Run& run);
  bool RetireAbortedOnRank(Run& run);
  void WatchEnqueued();
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
  bool GpuIsIdle();

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
  // for_network: if the run spans nodes, the executor waits for this too.
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
  // Runs of this rank's GPU that have ended for the user.
  struct EnqueuedRun {
    std::shared_ptr<RankRun> run;
    std::string title;  // of its first operation
    int64_t failed_at = 0;
  };
  std::vector<EnqueuedRun> enqueued_;
  std::atomic<size_t> enqueued_count_{0};
  std::vector<Occupant> places_;
  uint64_t next_place_ = 0;
  StoreChoice store_choice_;
  uint64_t moved_bytes_ = 0;  // in this step
  uint32_t failures_seen_ = 0;
  std::atomic<bool> recheck_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_PROGRESS_ENGINE_H_
