// LeftRanks: the ranks that have left a running epoch.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LEFT_RANKS_H_
#define MAYPOLE_WORKER_CORE_LEFT_RANKS_H_

#include <set>
#include <string>

#include "worker/core/epoch_info.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

class LeftRanks {
 public:
  // `info` must outlive this object.
  explicit LeftRanks(const EpochInfo& info) : info_(info) {}

  // Returns false if the rank had left before.
  bool Add(int rank);

  bool Has(int rank) const { return ranks_.contains(rank); }
  bool empty() const { return ranks_.empty(); }
  const std::set<int>& ranks() const { return ranks_; }
  int first() const { return first_; }  // to leave; -1: none has
  // How many ranks have not left.
  size_t Live() const {
    return static_cast<size_t>(info_.size) - ranks_.size();
  }
  // Returns a member that has left; -1 if there is none.
  int MemberOf(const NodeSet& set) const;

  // "rank 2 (node n1) has shut down; operations that need it cannot run"
  std::string Text(int rank) const;
  // " (after rank 0 (node n0) had shut down)" if a rank has left, since later
  // failures may be a consequence; otherwise empty.
  std::string AfterText() const;

 private:
  const EpochInfo& info_;
  std::set<int> ranks_;
  int first_ = -1;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LEFT_RANKS_H_
