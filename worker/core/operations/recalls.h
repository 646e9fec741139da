// SlotRecalls: takes slots back from names that nobody uses any more.
//
// Purpose: names in use at a time are bounded by the slots, names over a job's
// life are not. When a name finds no free slot, those that have not been used
// for longest are taken from their names:
//
//   1. The coordinator forgets the name's id (RetireNames, NamesRetired): only
//      a name that all nodes count from 1 again may be forgotten by one.
//   2. Each rank that knows the slot's number gives it back (SlotRecall,
//      SlotReturn), unless one of its operations uses it.
//   3. A slot that all have given back, and none has asked for again, is free.
//
// docs/board.md has the argument why no rank can use a slot that was given to
// another name.
//
//   SlotRecalls recalls(&slots);
//   recalls.Hand(slot, local);                    // the rank is told the
//   number SlotRecalls::Choice c = recalls.Choose(idle, may);
//   recalls.Take(local, answer, &free);           // false: it was not asked
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

// All local members are at this generation of the slot.
struct IdleSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

class SlotRecalls {
 public:
  explicit SlotRecalls(SlotTable* slots) : slots_(*slots) {}

  // A local rank is told the slot's number.
  void Hand(uint32_t slot, uint32_t local);

  struct Choice {
    std::vector<std::pair<uint32_t, session::SlotRecall>> recalls;  // by rank
    std::vector<uint32_t> ids;   // for the coordinator to forget
    std::vector<uint32_t> free;  // slots that nobody has to give back
  };
  // What is to be done to free an eighth of the slots, least recently used
  // first; of idle ones that `may` is true for.
  Choice Choose(const std::vector<IdleSlot>& idle,
                const std::function<bool(uint32_t slot)>& may);

  // A rank's answer to its oldest recall. False: it owes none, or says what
  // cannot be. Slots that are free now are added to *free.
  bool Take(uint32_t local, const session::SlotReturn& answer,
            std::vector<uint32_t>* free);
  // Local ranks that owe an answer, as a mask.
  uint64_t silent() const;
  // The rank has left and uses nothing any more.
  void Forget(uint32_t local, std::vector<uint32_t>* free);

 private:
  void Note(const IdleSlot& idle);
  bool IsCandidate(uint32_t slot) const;
  // The rank has answered for the slot.
  void Settle(uint32_t slot, uint32_t local, bool returned,
              std::vector<uint32_t>* free);

  SlotTable& slots_;
  uint64_t looks_ = 0;
  // Slots that a rank was asked for, by message, oldest first.
  std::map<uint32_t, std::deque<std::vector<uint32_t>>> asked_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_RECALLS_H_
