// SlotTable: which slot of the board belongs to which operation.
//
// Purpose: allots slots to identities (process set, kind, name), knows the
// coordinator's ids for them, and keeps what this node has reported last about
// each, so that a run is laid out from our own copy of the signatures and
// never from shared memory.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_SLOTS_H_
#define MAYPOLE_WORKER_CORE_SLOTS_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/signature.h"
#include "common/urgent.h"
#include "proto/coordinator.pb.h"
#include "worker/core/sets.h"

namespace maypole::worker {

struct SlotEntry {
  SharedSet set;
  Kind kind = Kind::kBarrier;
  std::string name;
  uint32_t id = 0;                    // the coordinator's; 0: not told yet
  uint32_t reported = 0;              // last generation reported as present
  std::vector<Signature> signatures;  // of `reported`, by local member
  std::vector<int64_t> splits;        // of `reported`; alltoall
  Urgency urgency = Urgency::kNone;   // of `reported`, as it was reported
  uint32_t answered = 0;              // last generation that has run, or failed
  uint32_t splits_number = 0;         // as SlotHeader.splits on the board
};

class SlotTable {
 public:
  explicit SlotTable(uint32_t slots) : limit_(slots) {}

  // The slot of the identity; *is_new if it was allotted just now. An error if
  // the table is full, or the places for splits are.
  absl::StatusOr<uint32_t> Allot(SharedSet set, Kind kind,
                                 const std::string& name, bool* is_new);
  // By the coordinator's id, or else by identity, which then learns the id.
  // Null if there is none.
  SlotEntry* Resolve(uint32_t id, const proto::Identity* identity,
                     uint32_t* slot);
  SlotEntry* Get(uint32_t slot);
  // Of a slot that is allotted.
  const SlotEntry& at(uint32_t slot) const { return entries_.at(slot); }
  uint32_t allotted() const { return static_cast<uint32_t>(entries_.size()); }

 private:
  static std::string Key(uint32_t process_set, Kind kind,
                         const std::string& name);

  const uint32_t limit_;
  uint32_t split_names_ = 0;
  std::vector<SlotEntry> entries_;
  std::unordered_map<std::string, uint32_t> by_identity_;
  std::unordered_map<uint32_t, uint32_t> by_id_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_SLOTS_H_
