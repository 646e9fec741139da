// ResultComparison: finds ranks whose copy of a result differs from the
// others'.
//
// Purpose: takes the nodes' Results messages. An operation of one node arrives
// only if its copies differ; one of several nodes is compared when all nodes of
// its process set have reported it. The ranks whose checksum differs from that
// of the majority have a wrong copy; without a majority it is unknown which
// ranks are wrong.
//
//   ResultComparison comparison(&nodes, &sets);
//   comparison.Take(node, message, &found);   // appends what differs
//   comparison.Finish(&found);                // the epoch is over
//
// Thread contract: not synchronized; pure.
//
// Invariants: at most kMaxComparedResults operations are undecided; beyond that
// the oldest is decided by the nodes that have reported it.
#ifndef MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_COMPARISON_H_
#define MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/membership/process_sets.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

struct ResultDifference {
  std::string tensor;
  std::string kind;
  uint32_t call = 0;            // which use of the name
  std::vector<uint32_t> ranks;  // whose copy is, or may be, wrong
  bool certain = false;         // the others are the majority
  std::string text;             // a sentence for users
};

class ResultComparison {
 public:
  // Both must outlive this object.
  ResultComparison(const EpochNodes* nodes, const ProcessSets* sets,
                   size_t limit = kMaxComparedResults)
      : nodes_(*nodes), sets_(*sets), limit_(limit) {}

  // An error means that no correct executor sends such a message.
  absl::Status Take(size_t node, const proto::Results& message,
                    std::vector<ResultDifference>* found);
  // Decides the undecided operations.
  void Finish(std::vector<ResultDifference>* found);

  // What has been decided since the last call.
  ResultsCompared TakeCounts() { return std::exchange(counts_, {}); }
  size_t undecided() const { return undecided_.size(); }

 private:
  // Ranks with equal copies.
  struct Group {
    uint32_t checksum = 0;
    uint64_t bytes = 0;
    std::vector<uint32_t> ranks;
  };
  struct Undecided {
    proto::Identity identity;
    uint32_t call = 0;
    std::set<size_t> missing;  // nodes
    std::vector<Group> groups;
    uint64_t age = 0;
  };
  using Key = std::pair<uint32_t, uint32_t>;  // the operation's id, generation

  absl::Status Check(size_t node, const RankSet* set,
                     const proto::Result& result) const;
  static void Add(const proto::Result& result, std::vector<Group>* groups);
  void Expect(const Key& key, const proto::Result& result, const RankSet& set);
  void Settle(std::map<Key, Undecided>::iterator it,
              std::vector<ResultDifference>* found);
  // Sorts the groups: most ranks first.
  ResultDifference Describe(const proto::Identity& identity, uint32_t call,
                            std::vector<Group> groups) const;
  std::string WhoText(const std::vector<uint32_t>& ranks) const;

  const EpochNodes& nodes_;
  const ProcessSets& sets_;
  const size_t limit_;
  std::map<Key, Undecided> undecided_;
  std::map<uint64_t, Key> by_age_;
  uint64_t last_age_ = 0;
  ResultsCompared counts_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_COMPARISON_H_
