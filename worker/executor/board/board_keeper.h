// BoardKeeper: the executor's access to the board of one epoch.
//
// Purpose: finds ready slots and copies them; writes plans, tickets and
// failures. Any rank may corrupt this shared memory, so this class copies
// everything before it checks it, and trusts only the executor's own counts and
// bounds.
//
// Thread contract: the executor's loop only.
#ifndef MAYPOLE_WORKER_EXECUTOR_BOARD_BOARD_KEEPER_H_
#define MAYPOLE_WORKER_EXECUTOR_BOARD_BOARD_KEEPER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/board/board.h"
#include "worker/core/actions.h"
#include "worker/core/liveness/board_snapshot.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/recalls.h"
#include "worker/core/operations/run_spec.h"

namespace maypole::worker {

class BoardKeeper {
 public:
  explicit BoardKeeper(std::unique_ptr<Board> board);

  const Board& board() const { return *board_; }
  // The name of the slot's operation, from the executor's own copy.
  const std::string& NameOf(uint32_t slot) const { return slots_[slot].name; }

  // Returns an error if there is no memory for the slot; then it must not be
  // used.
  Status Allot(const AllotSlot& allot);
  // Returns the slots that no rank seems to use: their local members are all at
  // the same generation, or a member of their process set has left.
  std::vector<IdleSlot> IdleSlots() const;
  // Takes the slot from its name. Returns its greatest generation, for
  // ExecutorCore::OnSlotFreed.
  uint32_t Free(uint32_t slot);
  bool IsAllotted(uint32_t slot) const {
    return slot < allotted_ && slots_[slot].set != nullptr;
  }
  // The memory that the board uses now.
  size_t bytes() const { return board_->bytes(reserved_); }
  // Returns the slots that have become ready or urgent since the last call,
  // ordered by slot.
  std::vector<ReadySlot> TakeReadySlots();
  // Writes the plan and the members of a run; Issue() then queues its ticket.
  void WritePlan(const RunSpec& run);
  void Issue(const RunSpec& run);
  // Returns the records of runs at RunSite::kRanks that all ranks have left
  // since the last call.
  std::vector<uint32_t> TakeRunsOfRanks();
  // Queues the ticket of an operation of this node that its ranks execute.
  void Issue(uint32_t slot, uint32_t generation);
  // Returns the local members' copied inputs of these operations, reduced, one
  // operation after the other. Returns an empty string if a rank has corrupted
  // the board.
  std::string ReducedCopies(
      const std::vector<SmallOperation>& operations) const;
  // Reduces the nodes' inputs of small operations, commits the operations and
  // queues their tickets.
  void Finish(const FinishSmall& small);
  // Commits an operation that GPUs have executed, and queues its ticket.
  void Commit(uint32_t slot, uint32_t generation);
  // Queues held tickets: those that could not be queued because a rank has not
  // read older ones. Returns true if some are still held: call it again soon.
  bool PlaceHeldTickets();
  void MarkPresent(uint32_t local, int pid);
  void MarkLeft(const worker::MarkLeft& left);
  // After an abort: the rank no longer touches other ranks' arenas, so the
  // other ranks need not wait for it.
  void MarkGone(uint32_t local);
  // Fails operations of this node that wait for a rank that has left. Call it
  // repeatedly while somebody_left(), because an arrival may cross MarkLeft().
  void FailWaiting();
  bool somebody_left() const { return !left_.empty(); }

  // Returns a snapshot of the board. `asked` is a mask of the local ranks whose
  // processes are checked for being stopped.
  BoardSnapshot TakeSnapshot(uint64_t asked);
  // True if all ranks that are present say that they are blocked.
  bool AllSayBlocked() const;

  // True: ranks must wake the loop; see Board::ClaimExecutorWake.
  void SetSleeping(bool sleeping);

 private:
  // Returns true if any slot was ready.
  bool TakeReadySlotsOnce(std::vector<ReadySlot>* all);
  bool CopyReadySlot(uint32_t slot, ReadySlot* ready) const;
  void CopyGpuPlaces(uint32_t slot, ReadySlot* ready) const;
  bool AllCopied(uint32_t slot, uint32_t generation) const;
  void CopySplits(uint32_t slot, ReadySlot* ready) const;
  bool HasLeft(const NodeSet& set) const;
  // Returns the departed rank for which the slot's last generation,
  // *generation, waits in vain; null if there is none.
  const worker::MarkLeft* LeftBehind(uint32_t slot, uint32_t* generation) const;

  // The executor's own copy of a slot's header, since the board's may be
  // corrupted.
  struct KeptSlot {
    SharedSet set;        // null: not allotted
    uint32_t splits = 0;  // number + 1
    std::string name = {};
  };

  // A negotiated run that has been issued.
  struct Issued {
    uint32_t slot = 0;  // of its first operation
    uint32_t generation = 0;
    uint64_t members = 0;  // mask of the ranks that have not left it
  };
  struct Present {
    bool here = false;
    int pid = 0;  // in our namespace, or 0
  };
  void ScanSlot(uint32_t slot, BoardSnapshot* snapshot) const;
  void ScanRun(uint32_t record, BoardSnapshot* snapshot);
  void ScanBlocked(uint32_t local, RankSnapshot* rank) const;
  // Returns true if the rank has not left `generation` of the run, and records
  // in *snapshot what it holds.
  bool Holds(RunRef ref, uint32_t generation, uint32_t local, uint32_t slot,
             BoardSnapshot* snapshot) const;

  const std::unique_ptr<Board> board_;
  uint32_t allotted_ = 0;
  uint32_t reserved_ = 0;  // slots; a multiple of kSlotStep
  uint64_t next_ticket_ = 0;
  uint32_t turns_ = 1;  // odd, so never 0
  std::vector<worker::MarkLeft> left_;
  std::vector<KeptSlot> slots_;          // by slot, allotted_ of them
  std::vector<Issued> issued_;           // by record
  std::vector<uint32_t> runs_of_ranks_;  // records
  std::vector<Present> present_;
  // Tickets that could not be queued yet.
  struct Held {
    RunRef run = 0;
    uint32_t generation = 0;
    uint64_t members = 0;
  };
  std::deque<Held> held_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_BOARD_KEEPER_H_
