// SlotRecalls: takes slots back from names that are no longer used.
//
// Purpose: the number of slots bounds the names that are in use at the same
// time, but not the names that a job uses in its life. When a name finds no
// free slot, the least recently used slots are taken from their names:
//
//   1. The coordinator forgets the name's id (RetireNames, NamesRetired). Then
//      all nodes count the name from 1 again, as this node must.
//   2. Each rank that knows the slot's number gives it back (SlotRecall,
//      SlotReturn), unless one of its operations uses it.
//   3. A slot is free when all ranks have given it back and none has requested
//      it again.
//
// docs/board.md explains why no rank can use a slot that was given to another
// name.
//
//   SlotRecalls recalls(&slots);
//   recalls.Hand(slot, local);         // the rank is about to get the number
//   SlotRecalls::Choice c = recalls.Choose(idle, may);
//   recalls.Take(local, answer, &free);    // false if the rank was not asked
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: a rank knows the number of a slot only while it is one of the
// slot's holders; a slot with holders keeps its name.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_RECALLS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_RECALLS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/wire/session_messages.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

// A slot that no rank seems to use (BoardKeeper::IdleSlots), and the greatest
// generation at which a local member is.
struct IdleSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

class SlotRecalls {
 public:
  explicit SlotRecalls(SlotTable* slots) : slots_(*slots) {}

  // Records that a local rank learns the slot's number.
  void Hand(uint32_t slot, uint32_t local);

  struct Choice {
    std::vector<std::pair<uint32_t, session::SlotRecall>> recalls;  // by rank
    std::vector<uint32_t> ids;   // for the coordinator to forget
    std::vector<uint32_t> free;  // slots that no rank has to give back
  };
  // Returns how to free an eighth of the slots, least recently used first,
  // among the idle slots for which `may` returns true.
  Choice Choose(const std::vector<IdleSlot>& idle,
                const std::function<bool(uint32_t slot)>& may);

  // Handles a rank's answer to its oldest recall and adds slots that became
  // free to *free. Returns false if the rank owes no answer, or the answer
  // lists too many slots.
  bool Take(uint32_t local, const session::SlotReturn& answer,
            std::vector<uint32_t>* free);
  // A mask of the local ranks that owe an answer.
  uint64_t silent() const;
  // The rank has left and no longer uses any slot.
  void Forget(uint32_t local, std::vector<uint32_t>* free);

 private:
  void Note(const IdleSlot& idle);
  bool IsCandidate(uint32_t slot) const;
  // The rank has answered for the slot; `returned`: it has given it back.
  void Settle(uint32_t slot, uint32_t local, bool returned,
              std::vector<uint32_t>* free);

  SlotTable& slots_;
  uint64_t looks_ = 0;
  // By local rank: the slots of each unanswered recall, oldest first.
  std::map<uint32_t, std::deque<std::vector<uint32_t>>> asked_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RECALLS_H_
