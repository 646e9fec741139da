// Joins: which ranks have joined and stand aside, and when all ranks have.
//
// Purpose: a rank that has no more inputs joins: it stands aside and submits,
// without input, the operations that the others still need. When all ranks have
// joined and are settled (none has an operation of its own pending), the join
// ends for all ranks, and none stands aside any more.
//
//   Joins joins(&nodes, &departures, size);
//   joins.OnState(node, message);        // an error: the message is bad
//   joins.RequestStandIns(op);           // of each pending operation
//
// After a rank has left, no join can be completed: ranks that wait, and ranks
// that join later, get an error, and no rank stands aside.
//
// Thread contract: not synchronized; pure.
//
// Invariants: the n-th joins of all ranks belong together. A rank stands aside
// from OnState(settled = false) until the reply.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_JOINS_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_JOINS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Joins {
 public:
  // Both pointers must outlive this object. `size`: ranks of the epoch.
  Joins(EpochNodes* nodes, const Departures* departures, uint32_t size)
      : nodes_(*nodes), departures_(*departures), ranks_(size) {}

  // Handles a message from `node`; the caller has checked that the rank is on
  // that node. True if the rank stands aside from now on.
  absl::StatusOr<bool> OnState(size_t node, const proto::JoinState& message);
  // A rank has just left.
  void OnRankLeft();

  // Takes over from another coordinator, which has answered this many joins.
  void Restore(uint32_t answered) { number_ = answered + 1; }

  bool Aside(uint32_t rank) const { return ranks_[rank] != State::kAway; }
  bool AnyAside() const { return begun_ > 0; }
  // True if all ranks of the set that are on the node stand aside.
  bool Aside(const RankSet& set, size_t node) const;
  // The ranks that have not begun the join in which others wait.
  std::vector<uint32_t> Missing() const;

  // Requests a stand-in for the operation from the nodes that have not reported
  // it, where all ranks of its set stand aside; from each node once.
  void RequestStandIns(NegotiatedOperation* op);

 private:
  enum class State { kAway, kBegun, kSettled };

  void SendLeft(std::optional<size_t> node, uint32_t number);
  void SendReply(std::optional<size_t> node, proto::JoinReply reply);
  void EndJoin();
  proto::StandIn StandInOf(const NegotiatedOperation& op) const;

  EpochNodes& nodes_;
  const Departures& departures_;
  std::vector<State> ranks_;
  uint32_t number_ = 1;  // of the current or the next join
  uint32_t begun_ = 0;   // ranks that are not kAway
  uint32_t settled_ = 0;
  uint32_t last_ = 0;  // the last rank that has begun
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_JOINS_H_
