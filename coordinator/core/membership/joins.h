// Joins: which ranks stand aside, and when all have.
//
// Purpose: a rank that has no more inputs joins: it stands aside and submits,
// with nothing to bring, what the others still need, until all ranks have
// joined. When each has, and none of them has an operation of its own pending
// (it is settled), the join ends for all and nobody stands aside any more.
//
//   Joins joins(size);
//   joins.Take(node, message, &replies);      // an error: the message is bad
//   for (size_t node : joins.ToStandIn(op)) ...send StandIn, once...
//
// After a rank has left no join can end: those who wait, and those who come
// later, are told so, and nobody stands aside.
//
// Thread contract: not synchronized; pure.
//
// Invariants: the n-th joins of all ranks belong together; a rank stands aside
// from its Take(settled = false) until the reply.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOINS_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOINS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Joins {
 public:
  // (to this node, or none: to all; the message)
  using Reply = std::pair<std::optional<size_t>, proto::JoinReply>;
  using Replies = std::vector<Reply>;

  explicit Joins(uint32_t size) : ranks_(size) {}

  // From a rank of `node`, which the caller has checked. True: the rank stands
  // aside from now on.
  absl::StatusOr<bool> Take(size_t node, const proto::JoinState& message,
                            Replies* replies);
  // `who`: "rank 2 (node n1)"
  void OnRankLeft(const std::string& who, Replies* replies);

  bool Aside(uint32_t rank) const { return ranks_[rank] != State::kAway; }
  bool AnyAside() const { return begun_ > 0; }
  // All ranks of the set that are on the node stand aside.
  bool Aside(const RankSet& set, size_t node) const;
  // Those who have not begun the join that others wait in.
  std::vector<uint32_t> Missing() const;

  // Nodes that have not submitted the operation, all of whose ranks stand
  // aside, and which have not been asked to stand in for it. Asked now.
  std::vector<size_t> ToStandIn(NegotiatedOperation* op) const;
  // What they are asked.
  static proto::StandIn Request(const NegotiatedOperation& op);

 private:
  enum class State { kAway, kBegun, kSettled };

  proto::JoinReply LeftReply(uint32_t number) const;

  std::vector<State> ranks_;
  uint32_t number_ = 1;  // of the join that comes or is under way
  uint32_t begun_ = 0;   // ranks that are not kAway
  uint32_t settled_ = 0;
  uint32_t last_ = 0;  // the last to begin
  std::string left_;   // who; empty: nobody
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOINS_H_
