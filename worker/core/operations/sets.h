// SetTable: the process sets of an epoch, as one node sees them.
//
// Purpose: set 0 is all ranks; others come and go as all ranks of the job ask
// for them (the coordinator compares and numbers). A set is constant; who uses
// it shares it, so that it outlives its removal.
//
// Thread contract: not synchronized; no I/O, no clock. A NodeSet is constant.
//
// Invariants: ids grow and are never used again; at most kMaxProcessSets.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process_set.h"

namespace maypole::worker {

struct NodeSet : ProcessSet {
  std::vector<int> here;          // global ranks of `locals`
  std::vector<uint32_t> node_of;  // by position in the set
  std::vector<uint32_t> nodes;    // that have members, ascending

  // "ranks 0,1" or "rank 3".
  std::string RanksText() const;
};

using SharedSet = std::shared_ptr<const NodeSet>;

class SetTable {
 public:
  // By global rank; and the global ranks of this node by local rank.
  SetTable(std::vector<uint32_t> node_of_rank, std::vector<int> local_ranks);

  const SharedSet& all() const { return sets_.begin()->second; }
  // An error: the coordinator says what cannot be.
  absl::Status Add(uint32_t id, const std::vector<int>& ranks);
  void Remove(uint32_t id);
  // Null if there is none.
  SharedSet Find(uint32_t id) const;
  // The same with a sentence for who has asked for it.
  absl::StatusOr<SharedSet> Get(uint32_t id) const;
  uint32_t job_size() const {
    return static_cast<uint32_t>(node_of_rank_.size());
  }

 private:
  SharedSet Make(uint32_t id, const std::vector<int>& ranks) const;

  const std::vector<uint32_t> node_of_rank_;
  const std::vector<int> local_ranks_;
  uint32_t last_id_ = 0;
  std::map<uint32_t, SharedSet> sets_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SETS_H_
