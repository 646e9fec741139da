// BoardKeeper: the executor's hand on the board of one epoch.
//
// Purpose: finds what ranks have announced and copies it; writes plans, tickets
// and failures. All that is read here is shared memory that any rank may spoil:
// it is copied first, and only counts and bounds of our own are trusted.
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
  // What the slot is for; by our own copy.
  const std::string& NameOf(uint32_t slot) const { return slots_[slot].name; }

  // An error: there is no memory for the slot, and nobody may touch it.
  Status Allot(const AllotSlot& allot);
  // Slots whose local members are all at one generation.
  std::vector<IdleSlot> IdleSlots() const;
  // Takes the slot from its name; returns what ExecutorCore::OnSlotFreed needs.
  uint32_t Free(uint32_t slot);
  bool IsAllotted(uint32_t slot) const {
    return slot < allotted_ && slots_[slot].set != nullptr;
  }
  // What the board takes now.
  size_t bytes() const { return board_->bytes(reserved_); }
  // What has become present, or urgent, since the last call; by slot.
  std::vector<ReadySlot> TakeReadySlots();
  // Writes the plan of a run and who takes part; Issue() then puts it into the
  // ticket order.
  void WritePlan(const RunSpec& run);
  void Issue(const RunSpec& run);
  // True while tickets wait for a rank to read older ones: call it now and
  // then.
  bool PlaceHeldTickets();
  void MarkPresent(uint32_t local, int pid);
  void MarkLeft(const worker::MarkLeft& left);
  // After an abort: peers need not wait for the rank to leave their arenas.
  void MarkGone(uint32_t local);
  // Fails what waits on this node for a rank that has left. To be repeated
  // while somebody has left: an arrival may cross MarkLeft.
  void FailWaiting();
  bool somebody_left() const { return !left_.empty(); }

  // What ranks have said about themselves and each other. asked: local ranks of
  // whom it shall tell whether they are stopped.
  BoardSnapshot Look(uint64_t asked);
  // All ranks that are there say that they are blocked.
  bool AllSayBlocked() const;

  // True while a wake-up is wanted; see Board::ClaimExecutorWake.
  void SetSleeping(bool sleeping);

 private:
  // True if there was any.
  bool TakeReadySlotsOnce(std::vector<ReadySlot>* all);
  bool CopyReadySlot(uint32_t slot, ReadySlot* news) const;
  void CopySplits(uint32_t slot, ReadySlot* news) const;
  // Whose departure the slot's last generation cannot do without; null: it can.
  const worker::MarkLeft* LeftBehind(uint32_t slot, uint32_t* generation) const;

  // Our own copy of what a slot is for; what the board says may be spoiled.
  struct KeptSlot {
    SharedSet set;        // null: not allotted
    uint32_t splits = 0;  // number + 1
    std::string name = {};
  };

  // A negotiated run that has been issued.
  struct Issued {
    uint32_t slot = 0;  // of its first operation
    uint32_t generation = 0;
    uint64_t members = 0;  // that have not left it; 0: nobody is in it
  };
  struct Present {
    bool here = false;
    int pid = 0;  // in our namespace, or 0
  };
  void LookAtSlot(uint32_t slot, BoardSnapshot* look) const;
  void LookAtRun(uint32_t record, BoardSnapshot* look);
  void LookAtBlocked(uint32_t local, RankSnapshot* rank) const;
  // True: the rank has not left generation g of the run.
  bool Holds(RunRef ref, uint32_t generation, uint32_t local, uint32_t slot,
             BoardSnapshot* look) const;

  const std::unique_ptr<Board> board_;
  uint32_t allotted_ = 0;
  uint32_t reserved_ = 0;  // slots; a multiple of kSlotStep
  uint64_t next_ticket_ = 0;
  uint32_t turns_ = 1;  // odd, so never 0
  std::vector<worker::MarkLeft> left_;
  std::vector<KeptSlot> slots_;  // allotted_ of them
  std::vector<Issued> issued_;   // by record
  std::vector<Present> present_;
  // Tickets that could not be placed yet: record, generation, members.
  struct Held {
    uint32_t record = 0;
    uint32_t generation = 0;
    uint64_t members = 0;
  };
  std::deque<Held> held_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_BOARD_KEEPER_H_
