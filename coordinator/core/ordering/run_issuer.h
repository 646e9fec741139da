// RunIssuer: the one order of an epoch's runs, and the operations that cannot
// run.
//
// Purpose: fuses operations that are released at the same time into runs, and
// sends each node those of process sets with ranks there. An operation that
// cannot run fails on the nodes that have reported it. So each reported
// operation gets one answer: its place in a run, OperationFailed, or the
// epoch's end.
//
//   RunIssuer runs(&nodes, &sets, &table, &steps, fusion_threshold);
//   runs.Issue(now, release);                 // of Buckets
//   runs.Fail(op, absl::AbortedError("rank 2 has shut down"));
//
// Thread contract: not synchronized; pure.
//
// Invariants: each node gets its runs in the one order, numbered from 1 without
// gaps.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_RUN_ISSUER_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_RUN_ISSUER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/buckets.h"
#include "coordinator/core/ordering/presence.h"
#include "coordinator/core/ordering/steps.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class RunIssuer {
 public:
  // All pointers must outlive this object.
  RunIssuer(EpochNodes* nodes, const ProcessSets* sets, OperationTable* table,
            Steps* steps, uint64_t fusion_threshold);

  // Settles the operations, and reports the runs to Steps.
  void Issue(Time now, const Release& release);
  // Settles the operation.
  void Fail(NegotiatedOperation* op, const absl::Status& status);
  // Fails what one node has reported; `decision` 0: it concerns no other node.
  void FailOn(size_t node, const NegotiatedOperation& op, uint32_t generation,
              const absl::Status& status, uint64_t decision = 0);

  // Takes over from another coordinator, which has sent the node this many
  // runs.
  void Restore(size_t node, uint64_t last_run) { sent_[node] = last_run; }
  // Sends a decision of that coordinator to the node, if it concerns it.
  void Reissue(size_t node, const proto::Decision& decision);
  void FillStatus(proto::JobStatus* status) const;

 private:
  // Runs in the order of the job, each with its process set.
  using Runs = std::vector<std::pair<const RankSet*, proto::Run>>;
  // Fuses these operations with one another, and appends their runs.
  void AddRuns(Time now, const std::vector<ReadyOperation>& ready, Runs* runs);
  proto::Run MakeRun(const std::vector<ReadyOperation>& ready,
                     const std::vector<size_t>& run);
  // Numbers the runs for each node, and sends it those that concern it.
  void Send(const Runs& runs);
  // The messages with these runs (indices), numbered from `first`.
  std::vector<Outgoing> Executes(const Runs& runs,
                                 const std::vector<size_t>& mine,
                                 uint64_t first) const;
  bool Concerns(size_t node, uint32_t process_set) const;

  EpochNodes& nodes_;
  const ProcessSets& sets_;
  OperationTable& table_;
  Steps& steps_;
  const uint64_t fusion_threshold_;
  std::vector<uint64_t> sent_;  // by node: runs
  uint64_t runs_ = 0;
  uint64_t operations_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_RUN_ISSUER_H_
