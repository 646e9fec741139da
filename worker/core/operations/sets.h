// SetTable: the process sets of an epoch, as one node sees them.
//
// Purpose: set 0 holds all ranks. Other sets are made and removed when all
// ranks of the job request it; the coordinator compares the requests and
// numbers the sets. A set is constant and shared by its users, so that it
// outlives its removal.
//
// Thread contract: not synchronized; no I/O, no clock. A NodeSet is constant.
//
// Invariants: ids grow and are never used again; at most kMaxProcessSets.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process_set.h"

namespace maypole::worker {

struct NodeSet : ProcessSet {
  std::vector<int> here;          // the global ranks of `locals`
  std::vector<uint32_t> node_of;  // by position in the set
  std::vector<uint32_t> nodes;    // that have members, ascending

  // "ranks 0,1" or "rank 3".
  std::string RanksText() const;
};

using SharedSet = std::shared_ptr<const NodeSet>;

class SetTable {
 public:
  // `node_of_rank` is indexed by global rank; `local_ranks` holds the global
  // ranks of this node by local rank.
  SetTable(std::vector<uint32_t> node_of_rank, std::vector<int> local_ranks);

  const SharedSet& all() const { return sets_.begin()->second; }
  // Returns an error if the coordinator's set is invalid.
  absl::Status Add(uint32_t id, const std::vector<int>& ranks);
  void Remove(uint32_t id);
  // Returns null if there is no such set.
  SharedSet Find(uint32_t id) const;
  // As Find(), but returns an error for the rank that has named the set.
  absl::StatusOr<SharedSet> Get(uint32_t id) const;
  // Calls `use` for all sets that were ever made, by ascending id.
  void ForEach(
      const std::function<void(const NodeSet& set, bool removed)>& use) const;
  uint32_t job_size() const {
    return static_cast<uint32_t>(node_of_rank_.size());
  }

 private:
  SharedSet Make(uint32_t id, const std::vector<int>& ranks) const;

  const std::vector<uint32_t> node_of_rank_;
  const std::vector<int> local_ranks_;
  uint32_t last_id_ = 0;
  std::map<uint32_t, SharedSet> sets_;
  std::map<uint32_t, SharedSet> removed_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_
