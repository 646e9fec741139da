// PresenceBatch: tells the coordinator what is newly present on the node.
//
// Purpose: no cycle timer. What is new goes out at once if nothing is
// unacknowledged, and otherwise with all that gathers until the
// acknowledgement comes (acknowledged = received by the coordinator, not
// executed).
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
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class PresenceBatch {
 public:
  explicit PresenceBatch(uint64_t epoch) : epoch_(epoch) {}

  // The entry's `reported` generation and signatures are news.
  void Add(const SlotEntry& entry);
  // Its `reported` generation was added before and is urgent now.
  void AddUrgent(const SlotEntry& entry);
  // All that was added has been sent.
  bool sent() const { return waiting_.empty() && urgent_.empty(); }
  void OnAcknowledged() { unacknowledged_ = false; }
  // What shall be sent now, if anything.
  std::optional<proto::Presence> Take();

 private:
  const uint64_t epoch_;
  std::deque<proto::PresentOperation> waiting_;
  std::deque<proto::UrgentOperation> urgent_;
  bool unacknowledged_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_PRESENCE_H_
