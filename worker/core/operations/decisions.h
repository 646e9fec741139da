// DecisionLog: the coordinator's decisions that other nodes may not have
// received.
//
// Purpose: what the coordinator decides for several nodes (proto Decision) must
// reach all of them, even if the coordinator dies after it has sent it to only
// some. So each executor keeps the decisions that it has received until it
// learns that all nodes have them, and sends them to a coordinator that
// replaces the previous one.
//
//   log.BeginEpoch();
//   log.Take(message);          // each message, in the order of receipt
//   log.Write(&node_state);
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariants: numbers ascend within an epoch. The log is bounded: the
// coordinator ends the session of a node that lacks kMaxUnacknowledged
// messages.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_DECISIONS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_DECISIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "proto/coordinator.pb.h"

namespace maypole::worker {

class DecisionLog {
 public:
  // Drops the decisions of the previous epoch, which no longer matter; a
  // coordinator that has not heard of the last ones reuses their numbers.
  void BeginEpoch() {
    kept_.clear();
    last_ = 0;
  }
  // Adds the message's decisions, and drops those that all nodes have.
  void Take(const proto::CoordinatorMessage& message);
  void Write(proto::NodeState* state) const;

  uint64_t last() const { return last_; }
  size_t size() const { return kept_.size(); }

 private:
  void Keep(uint64_t number, proto::Decision decision);

  std::deque<std::pair<uint64_t, proto::Decision>> kept_;
  uint64_t last_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_DECISIONS_H_
