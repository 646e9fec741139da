// Departures: the ranks that have left an epoch, and which of them have been
// announced.
//
// Purpose: the first kLeavesToldAtOnce ranks that leave are announced to all
// nodes at once, each in a message of its own; later ones are announced
// together, once per kLeavePause. The last one to leave ends the pause.
//
//   Departures departures(&nodes, size);
//   departures.OnLeft(3);
//   if (departures.Deadline() <= now) departures.OnTime(now);
//
// Thread contract: not synchronized; pure.
//
// Invariants: a rank leaves once, and each connected node learns of each.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_DEPARTURES_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_DEPARTURES_H_

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/core/membership/epoch_nodes.h"

namespace maypole::coordinator {

struct RankSet;

class Departures {
 public:
  // `nodes` must outlive this object. `size`: ranks of the epoch.
  Departures(EpochNodes* nodes, uint32_t size)
      : nodes_(*nodes), has_left_(size, false) {}

  void OnLeft(uint32_t rank);
  // Takes over another coordinator's departures, and announces none of them.
  void Restore(const std::set<uint32_t>& ranks);
  // Announces all departures to a node that may not know them.
  void Announce(size_t node) { nodes_.Send(node, MessageOf(ranks_)); }
  void OnTime(Time now);
  std::optional<Time> Deadline() const;

  const std::vector<uint32_t>& ranks() const { return ranks_; }  // in order
  bool Has(uint32_t rank) const {
    return rank < has_left_.size() && has_left_[rank];
  }
  size_t live() const { return has_left_.size() - ranks_.size(); }
  bool AllLeft() const { return live() == 0; }
  // The first rank of the set that has left; nullopt: none has.
  std::optional<uint32_t> FirstOf(const RankSet& set) const;
  // The node's ranks that have not left.
  std::vector<uint32_t> LiveRanks(size_t node) const;

 private:
  void AnnounceNew();
  Outgoing MessageOf(const std::vector<uint32_t>& ranks) const;

  EpochNodes& nodes_;
  std::vector<uint32_t> ranks_;
  std::vector<bool> has_left_;  // by rank
  std::vector<uint32_t> new_;   // not announced yet
  Time announced_at_{};         // when OnTime() has announced the last ones
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_DEPARTURES_H_
