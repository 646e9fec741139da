// StragglerTime: how long other nodes have waited for each node of an epoch.
//
// Purpose: a node is late while at least one operation is present on another
// node of its process set and not on this one. However many operations those
// are, the node's straggler time grows by at most one second per second; if it
// grows nearly that fast, the others do nothing but wait for the node.
//
//   straggler_time.Await(now, node);  // an operation is present elsewhere only
//   straggler_time.Came(now, node);   // that operation is also present here
//   Time late = straggler_time.Take(now, node);  // since the last Take
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_STRAGGLER_TIME_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_STRAGGLER_TIME_H_

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
  // The operation no longer needs the node. Uses the time of the last call that
  // was given one.
  void Drop(size_t node) {
    Node& n = nodes_[node];
    if (n.awaited == 0 || --n.awaited > 0) return;
    n.late += now_ - n.since;
  }
  Time Take(Time now, size_t node) {
    Pass(now);
    return TakeUntilNow(node);
  }
  // Like Take(), at the time of the last call that was given one.
  Time TakeUntilNow(size_t node) {
    Node& n = nodes_[node];
    if (n.awaited > 0) n.late += now_ - std::exchange(n.since, now_);
    return std::exchange(n.late, Time::zero());
  }

 private:
  struct Node {
    uint64_t awaited = 0;  // operations that wait for the node
    Time since{};          // start of the current wait, if awaited > 0
    Time late{};           // time of waits that are over
  };
  void Pass(Time now) { now_ = std::max(now_, now); }

  std::vector<Node> nodes_;
  Time now_{};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_STRAGGLER_TIME_H_
