// ReadySlot: what BoardKeeper has read from the board about one slot, and the
// checks that this must pass before the core uses it.
//
// Thread contract: values; pure functions.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_READY_SLOT_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_READY_SLOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/board/urgent.h"
#include "common/wire/signature.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

// Every local member is at `generation` of the slot. Copied, not yet checked.
struct ReadySlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  std::vector<Signature> signatures;  // by local member
  Urgency urgency = Urgency::kNone;
  // Where the local members' tensors are on a GPU (common/board/gpu_place.h).
  // Empty unless all are on GPUs (Board::IsOnGpu).
  std::vector<uint64_t> gpu_places = {};
  std::vector<uint64_t> gpu_rooms = {};  // with `gpu_places`
  // Alltoall: the rows that each local member sends to each rank of the set.
  std::vector<int64_t> splits = {};
  // All local members have copied their inputs to pool buffers.
  bool copied = false;
};

// Errors name the rank. They only occur if a rank has corrupted the board.
absl::Status CheckReadySlot(const ReadySlot& ready, const SlotEntry& entry,
                            const std::string& node_text);
// Returns the error for ranks that have submitted a name again before its last
// operation had ended.
absl::Status SubmittedTooEarly(const ReadySlot& ready, const SlotEntry& entry,
                               const std::string& node_text);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_READY_SLOT_H_
