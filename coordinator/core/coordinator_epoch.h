// CoordinatorEpoch: the life of a job with fixed ranks, from EpochStart to the
// epoch's end.
//
// Purpose: passes the nodes' messages to the classes that decide, and their
// decisions to one another. From a presence to a run:
//
//   OnPresence -> OperationTable   which nodes have the operation
//              -> Communicators    whose GPUs execute it
//              -> Buckets          with which others it runs
//              -> RunIssuer        the one order of runs
//              -> ScheduleControl  whether the nodes need the coordinator
//
// Recipients: a run or a mismatch goes to all nodes of the process set (all
// have reported the operation). If a rank's leaving makes an operation
// impossible, OperationFailed goes to the nodes that have reported it; the
// other nodes learn from RankLeft. So every reported presence gets exactly one
// answer: its place in a run, OperationFailed, or the epoch's end. An operation
// stays in the table, and can fail, until its run is issued.
//
// Thread contract: not synchronized; pure.
//
// Invariants: after a rank has left, no run that needs it is issued.
#ifndef MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
#define MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/admin/job_stats.h"
#include "coordinator/core/admin/timeline.h"
#include "coordinator/core/liveness/stall_monitor.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/endpoint_exchange.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/buckets.h"
#include "coordinator/core/ordering/communicators.h"
#include "coordinator/core/ordering/joins.h"
#include "coordinator/core/ordering/presence.h"
#include "coordinator/core/ordering/run_issuer.h"
#include "coordinator/core/ordering/schedule_control.h"
#include "coordinator/core/ordering/steps.h"
#include "coordinator/core/results/result_monitor.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// How many ranks the epoch has, and how many an elastic job may have.
struct EpochSize {
  uint32_t ranks = 0;
  uint32_t min = 0;
  uint32_t max = 0;
};

class CoordinatorEpoch {
 public:
  // `config`: includes the values that the job's ranks set. `output` must
  // outlive this object.
  CoordinatorEpoch(uint64_t number, EpochSize size,
                   std::vector<NodeMember> members, const Config& config,
                   std::string job, JobOutput* output);

  // Sends EpochStart to all nodes. Decisions have numbers beyond
  // `last_decision`.
  void Start(uint64_t last_decision);
  // Instead of Start(), continues an epoch that another coordinator began.
  // `states`: by member; null: the node is absent or no longer takes part in
  // the epoch; without a start: it has not heard of the epoch. `left`: ranks
  // that have left. Every decision for several nodes reaches all of them; after
  // Recovered, the nodes report open operations again.
  void Restore(const std::vector<const proto::NodeState*>& states,
               const std::set<uint32_t>& left, uint64_t last_decision);

  // Handles a message of this epoch from member `node`. Job handles RankGone
  // and ExecutorFailed itself. An error means that the executor violates the
  // protocol.
  absl::Status Handle(Time now, size_t node,
                      const proto::ExecutorMessage& message);
  // Runs operations that have waited too long for their bucket, reports
  // stragglers, and looks for deadlocks.
  void OnTime(Time now);
  std::optional<Time> Deadline() const;
  // The rank has left cleanly.
  void OnRankLeft(uint32_t rank);
  // In an elastic job: how many ranks want to enter or leave. If that has
  // changed, tells the nodes that have ranks.
  void SetWanted(uint32_t new_ranks, uint32_t leaving);
  // Sends the reason to all connected nodes, as an EpochEnd.
  void End(const absl::Status& why);

  // The fan-out of the tree in which executors relay what is sent to all nodes
  // (relays.h); 0: they do not relay.
  uint32_t RelayFanOut() const;
  // OK, or why the epoch itself has decided to end.
  const absl::Status& verdict() const;

  uint64_t number() const { return nodes_.epoch(); }
  EpochNodes& nodes() { return nodes_; }
  const EpochNodes& nodes() const { return nodes_; }
  const Departures& departures() const { return departures_; }
  const Stragglers& stragglers() const { return stalls_.stragglers(); }
  StragglerTime& straggler_time() { return table_.straggler_time(); }
  TimelineRelay& timeline() { return timeline_; }
  size_t pending() const { return table_.pending(); }
  bool frozen() const { return schedule_.frozen(); }

  // Fills in the job's status, and the status of one member's node.
  void FillStatus(proto::JobStatus* status) const;
  void FillStatus(Time now, size_t node, proto::NodeStatus* status) const;
  // An operator polls what the nodes do now: asks them for their counters.
  void Watch(Time now);
  void FillStats(Time now, proto::JobStatus* status) const {
    stats_.Fill(now, status);
  }

 private:
  // Handles a message that may change what ranks wait for.
  absl::Status Dispatch(Time now, size_t node,
                        const proto::ExecutorMessage& message);
  proto::EpochStart MakeStart() const;
  // See proto PresentOperation.inputs_sent.
  bool SendsInputs() const;
  void SendStart(size_t node, const Outgoing& all);

  absl::Status OnEndpoint(size_t node, const proto::Endpoint& message);
  absl::Status OnPresence(Time now, size_t node,
                          const proto::Presence& message);
  absl::Status OnOperation(Time now, size_t node,
                           const proto::PresentOperation& message,
                           Release* release);
  absl::Status OnUrgent(size_t node, const proto::UrgentOperation& message,
                        Release* release);
  absl::Status OnRetireNames(Time now, size_t node,
                             const proto::RetireNames& message);
  absl::Status OnSetRequest(Time now, size_t node,
                            const proto::SetRequest& message);
  absl::Status OnJoinState(Time now, size_t node,
                           const proto::JoinState& message);
  // Sends NamesRetired for the names that the table has forgotten.
  void SendForgotten(Release* release);
  void Issue(Time now, const Release& release);
  // OK, or why the operation cannot run: a rank of its set has left, or the set
  // was removed.
  absl::Status CheckSet(const NegotiatedOperation& op) const;
  // At the epoch's end: reports straggler time, and decides open comparisons.
  void ReportFinally();

  const Config config_;
  const EpochSize size_;
  EpochNodes nodes_;
  Departures departures_;
  EndpointExchange endpoints_;
  ProcessSets sets_;
  Joins joins_;
  OperationTable table_;
  Communicators communicators_;
  Buckets buckets_;  // of operations that are complete in table_
  Steps steps_;
  RunIssuer runs_;
  ScheduleControl schedule_;
  StallMonitor stalls_;
  ResultMonitor results_;
  TimelineRelay timeline_;
  JobStats stats_;
  // As last sent: new ranks, leaving. Unknown after Restore().
  std::optional<std::pair<uint32_t, uint32_t>> wanted_ = std::pair(0u, 0u);
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
