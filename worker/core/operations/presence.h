// PresenceBatch: batches the reports of operations that are ready on the node.
//
// Purpose: avoids a cycle timer. A new report is sent at once if no Presence
// message is unacknowledged. Otherwise it is sent when the acknowledgement
// arrives, together with all other reports that have gathered until then.
// Acknowledged means received by the coordinator, not executed.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: at most one Presence message is unacknowledged.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_PRESENCE_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_PRESENCE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "proto/coordinator.pb.h"
#include "worker/core/epoch_output.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class PresenceBatch {
 public:
  // Adds the entry's `reported` generation with its signatures.
  void Add(const SlotEntry& entry);
  // Adds all pending entries (SlotEntry::IsPending).
  void AddPending(const SlotTable& slots);
  // The `reported` generation, which was added before, has become urgent.
  void AddUrgent(const SlotEntry& entry);
  // True if everything that was added has been sent.
  bool sent() const { return waiting_.empty() && urgent_.empty(); }
  // Drops what has not been sent.
  void Clear() {
    waiting_.clear();
    urgent_.clear();
  }
  void OnAcknowledged() { unacknowledged_ = false; }
  // Forgets all that was added or sent.
  void Reset() {
    Clear();
    unacknowledged_ = false;
  }
  // Sends the message that may be sent now, if there is one.
  void Send(EpochOutput* output);

 private:
  std::optional<proto::Presence> Take();

  std::deque<proto::PresentOperation> waiting_;
  std::deque<proto::UrgentOperation> urgent_;
  bool unacknowledged_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_PRESENCE_H_
