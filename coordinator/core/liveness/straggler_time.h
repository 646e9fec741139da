// StragglerTime: for how long the nodes of an epoch have been awaited.
//
// Purpose: a node is late while some operation is present on another node of
// its process set and not on this one, however many operations that are. So a
// node's straggler time grows by at most a second a second; where it grows by
// nearly that, the others do nothing but wait for it.
//
//   straggler time.Await(now, node); // an operation is there, not on this node
//   straggler time.Came(now, node); // that operation has come
//   Time late = straggler time.Take(now, node); // since the last Take
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLER_TIME_H_
#define MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLER_TIME_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/core/actions.h"

namespace maypole::coordinator {

class StragglerTime {
 public:
  explicit StragglerTime(size_t nodes) : nodes_(nodes) {}

  void Await(Time now, size_t node) {
    Pass(now);
    if (nodes_[node].awaited++ == 0) nodes_[node].since = now_;
  }
  void Came(Time now, size_t node) {
    Pass(now);
    Drop(node);
  }
  // It is not awaited for that operation any more; at the last time told.
  void Drop(size_t node) {
    Node& n = nodes_[node];
    if (n.awaited == 0 || --n.awaited > 0) return;
    n.late += now_ - n.since;
  }
  Time Take(Time now, size_t node) {
    Pass(now);
    return TakeUntilNow(node);
  }
  // At the last time told.
  Time TakeUntilNow(size_t node) {
    Node& n = nodes_[node];
    if (n.awaited > 0) n.late += now_ - std::exchange(n.since, now_);
    return std::exchange(n.late, Time::zero());
  }

 private:
  struct Node {
    uint64_t awaited = 0;  // operations
    Time since{};          // when awaited
    Time late{};           // that is over
  };
  void Pass(Time now) { now_ = std::max(now_, now); }

  std::vector<Node> nodes_;
  Time now_{};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLER_TIME_H_
