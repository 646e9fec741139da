// SlotTable: which slot of the board belongs to which operation.
//
// Purpose: allots slots to identities (process set, kind, name), knows the
// coordinator's ids for them, and keeps what this node has reported last about
// each, so that a run is laid out from our own copy of the signatures and
// never from shared memory. A slot whose name nobody uses can be given to
// another one (recalls.h decides when).
//
// Generations are the slot's (common/board/board.h), but for what goes to the
// coordinator or comes from it: that counts a name's from 1 since it has known
// the name (CountOf, GenerationOf).
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/board/urgent.h"
#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

struct SlotEntry {
  SharedSet set;  // null: the slot is free
  Kind kind = Kind::kBarrier;
  std::string name;
  uint32_t id = 0;                    // the coordinator's; 0: not told
  uint32_t first = 0;                 // generation before the name's first
  uint32_t base = 0;                  // that the coordinator counts from
  uint32_t reported = 0;              // last generation reported as present
  std::vector<Signature> signatures;  // of `reported`, by local member
  std::vector<int64_t> splits;        // of `reported`; alltoall
  Urgency urgency = Urgency::kNone;   // of `reported`, as it was reported
  uint32_t answered = 0;              // last generation that has run, or failed
  uint32_t splits_number = 0;         // as SlotHeader.splits on the board

  // See recalls.h.
  uint64_t holders = 0;   // local ranks that know the slot's number
  uint64_t asked = 0;     // of these, who has not answered a recall
  bool recalled = false;  // nobody has kept it or asked for it since
  bool retiring = false;  // the coordinator was asked to forget the id
  uint32_t seen = 0;      // generation at the last look for idle names
  uint64_t used = 0;      // number of the look that has found it used

  uint32_t CountOf(uint32_t generation) const { return generation - base; }
  uint32_t GenerationOf(uint32_t count) const { return count + base; }
};

class SlotTable {
 public:
  explicit SlotTable(uint32_t slots) : limit_(slots) {}

  // The slot of the identity; *is_new if it was allotted just now.
  // RESOURCE_EXHAUSTED if no slot is free, or no place for splits.
  absl::StatusOr<uint32_t> Allot(SharedSet set, Kind kind,
                                 const std::string& name, bool* is_new);
  // By the coordinator's id, or else by identity, which then learns the id.
  // Null if there is none.
  SlotEntry* Resolve(uint32_t id, const proto::Identity* identity,
                     uint32_t* slot);
  // By the coordinator's id; null: no name has it.
  SlotEntry* FindId(uint32_t id);
  // The coordinator knows the name no more, and will count from here.
  void ForgetId(SlotEntry* entry);
  // Takes the slot from its name. It can be allotted again after Reuse().
  void Release(uint32_t slot);
  // first: no word of the slot has a greater generation.
  void Reuse(uint32_t slot, uint32_t first);

  // Null: the slot is nobody's.
  SlotEntry* Get(uint32_t slot);
  const SlotEntry* Get(uint32_t slot) const;
  // All slots below it have been allotted once.
  uint32_t allotted() const { return static_cast<uint32_t>(entries_.size()); }
  uint32_t limit() const { return limit_; }
  // A name would find a slot; one of an alltoall a place for splits.
  bool has_room() const { return entries_.size() < limit_ || !free_.empty(); }
  bool has_splits() const;

 private:
  absl::Status CheckRoom(Kind kind, const std::string& name) const;
  uint32_t TakeSlot(SlotEntry entry);

  const uint32_t limit_;
  std::vector<SlotEntry> entries_;
  // Slots that have been given back, and the generation to begin after.
  std::map<uint32_t, uint32_t> free_;
  uint32_t next_free_ = 0;  // names in order of first use get ascending slots
  uint32_t splits_made_ = 0;
  std::vector<uint32_t> free_splits_;
  std::unordered_map<std::string, uint32_t> by_identity_;
  std::unordered_map<uint32_t, uint32_t> by_id_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_
