// SlotTable: which slot of the board belongs to which operation.
//
// Purpose: allots slots to identities (process set, kind, name), knows the
// coordinator's ids for them, and keeps this node's last report about each. So
// a run is laid out from the executor's own copy of the signatures, never from
// shared memory. A slot whose name is no longer used can be given to another
// name (recalls.h decides when).
//
// Generations are those of the slot (common/board/board.h). Messages from and
// to the coordinator instead count a name's operations from 1, starting when
// the coordinator learns the name. CountOf() and GenerationOf() convert.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/board/urgent.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

// Inputs that another node has sent for a generation that has not run here yet.
struct SentInputs {
  uint32_t node = 0;
  uint32_t generation = 0;  // the coordinator's count
  uint64_t after = 0;       // proto InputsOf
  std::string bytes;
};

struct SlotEntry {
  SharedSet set;  // null: the slot is free
  Kind kind = Kind::kBarrier;
  std::string name;
  uint32_t id = 0;     // the coordinator's; 0: not known
  uint32_t first = 0;  // generation before the name's first
  uint32_t base = 0;   // the coordinator's count 0
  // Last generation reported as present, or given to GPUs.
  uint32_t reported = 0;
  std::vector<Signature> signatures;  // of `reported`, by local member
  // The signature of the last run that the coordinator has sent under `id`, if
  // Plain() had one for it.
  std::optional<Signature> last;
  uint64_t last_decision = 0;   // Run.decision of that run; 0: there was none
  std::vector<int64_t> splits;  // of `reported`; alltoall
  // Of `reported`, by local member. Empty: not all tensors are on GPUs.
  std::vector<GpuTensor> gpu_tensors;
  std::vector<uint64_t> gpu_rooms;   // with them; allgather, alltoall
  bool ranks_call_nccl = false;      // on `gpu_tensors`, each on its own GPU
  Urgency urgency = Urgency::kNone;  // of `reported`, as it was reported
  bool copied = false;               // of `reported`: see ReadySlot
  bool wants_copies = false;         // as SlotHeader's on the board
  bool inputs_sent = false;          // of `reported`: see PresentOperation
  std::vector<SentInputs> received;  // by ascending generation of each node
  uint32_t answered = 0;             // last generation that ran or failed
  uint32_t on_gpu = 0;               // generation that GPUs execute now; or 0
  uint32_t splits_number = 0;        // as SlotHeader.splits on the board

  // See recalls.h.
  uint64_t holders = 0;   // local ranks that know the slot's number
  uint64_t asked = 0;     // holders that have not answered a recall
  bool recalled = false;  // and no rank has kept or requested it since
  bool retiring = false;  // the coordinator was asked to forget the id
  uint32_t seen = 0;      // generation at the last look for idle slots
  uint64_t used = 0;      // number of the last look that found it in use

  // True for an operation over several nodes that is present here and that the
  // coordinator has not answered.
  bool IsPending() const { return set->negotiated() && reported != answered; }
  // "allreduce 'grad'"
  std::string Text() const;
  void FillIdentity(proto::Identity* out) const;
  // Returns the one signature that all local members have submitted on the
  // host; null if a report of `reported` needs more than that.
  const Signature* Plain() const;
  // True if a short report suffices (proto PresentOperation.as_before).
  bool IsAsBefore() const;
  uint32_t CountOf(uint32_t generation) const { return generation - base; }
  uint32_t GenerationOf(uint32_t count) const { return count + base; }
};

class SlotTable {
 public:
  explicit SlotTable(uint32_t slots) : limit_(slots) {}

  // Returns the slot of the identity; sets *is_new if it is newly allotted.
  // Returns RESOURCE_EXHAUSTED if no slot, or no room for splits, is free.
  absl::StatusOr<uint32_t> Allot(SharedSet set, Kind kind,
                                 const std::string& name, bool* is_new);
  // Finds an entry by the coordinator's id or else by identity; in the latter
  // case the entry gets the id. Returns null if there is none.
  SlotEntry* Resolve(uint32_t id, const proto::Identity* identity,
                     uint32_t* slot);
  // Finds an entry by the coordinator's id; returns null if no name has it.
  SlotEntry* FindId(uint32_t id);
  // The coordinator no longer knows the name and will count from here.
  void ForgetId(SlotEntry* entry);
  // Forgets the ids of all operations over several nodes.
  void ForgetIds();
  // Takes the slot from its name. It can be allotted again after Reuse().
  void Release(uint32_t slot);
  // No word of the slot has a generation beyond `first`.
  void Reuse(uint32_t slot, uint32_t first);

  // Returns null if the slot belongs to no name.
  SlotEntry* Get(uint32_t slot);
  const SlotEntry* Get(uint32_t slot) const;
  // All slots below this number have been allotted at least once.
  uint32_t allotted() const { return static_cast<uint32_t>(entries_.size()); }
  // Calls `use` for all slots that belong to names, by ascending number.
  template <typename Use>  // void(uint32_t slot, const SlotEntry& entry)
  void ForEach(const Use& use) const {
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].set != nullptr) use(slot, entries_[slot]);
    }
  }
  uint32_t limit() const { return limit_; }
  // Whether a new name would find a slot, and, for an alltoall, room for
  // splits.
  bool has_room() const { return entries_.size() < limit_ || !free_.empty(); }
  bool has_splits() const;

 private:
  absl::Status CheckRoom(Kind kind, const std::string& name) const;
  uint32_t TakeSlot(SlotEntry entry);

  const uint32_t limit_;
  std::vector<SlotEntry> entries_;
  // Slots that can be allotted again, each with the generation to begin after.
  std::map<uint32_t, uint32_t> free_;
  uint32_t next_free_ = 0;  // names in order of first use get ascending slots
  uint32_t splits_made_ = 0;
  std::vector<uint32_t> free_splits_;
  std::unordered_map<std::string, uint32_t> by_identity_;
  std::unordered_map<uint32_t, uint32_t> by_id_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SLOTS_H_
