// Metrics: the coordinator's metrics for Prometheus.
//
//   maypole_build_info{version}                 1
//   maypole_coordinator_leader                  1: it leads; 0: a standby
//   maypole_coordinator_term                    of its leadership; 0: none
//   maypole_jobs, _nodes, _ranks                now; ranks of running epochs
//   maypole_pending_operations                  present on some nodes only
//   maypole_late_ranks, _late_operations        reported as late
//   maypole_operations_total{kind}              issued
//   maypole_operation_bytes_total{kind}         bytes of their results
//   maypole_runs_total                          issued
//   maypole_run_operations                      histogram: operations of a run
//   maypole_buckets_total{end}                  complete, urgent, age,
//                                               forgotten
//   maypole_frozen_jobs                         without negotiation now
//   maypole_schedules_total                     begun (the frozen tier)
//   maypole_schedules_ended_total{reason}       late, other_operation, ..
//   maypole_scheduled_operations_total          of schedules that have ended
//   maypole_negotiation_seconds                 histogram: first node's
//                                               presence until issued
//   maypole_errors_total{kind}                  mismatch, rank_lost, rank_left,
//                                               executor_lost, start_timeout,
//                                               bad_message, stalled,
//                                               deadlock
//   maypole_reconnects_total                    streams resumed
//   maypole_relayed_messages_total              given to one node for many
//   maypole_events_total{level}                 info, warning, error
//   maypole_node_late_seconds_total{job,node}   other nodes waited for it
//   process_*                                   common/metrics/process.h
//
// The labels job and node have the values of live sessions (at most
// kMaxSessions); every other label has a fixed set of values.
//
// Thread contract: any thread may call any method. The metrics server's thread
// calls the functions given to Serve().
#ifndef MAYPOLE_COORDINATOR_SERVICE_METRICS_H_
#define MAYPOLE_COORDINATOR_SERVICE_METRICS_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/server.h"
#include "common/program/address.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/election/leadership.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace maypole::coordinator {

class StragglerNodes;

class Metrics {
 public:
  Metrics();

  void Observe(const Action& action);

  // Serves the metrics over HTTP until StopServing(); returns the port.
  // take_lateness: as CoordinatorCore::TakeStragglerTime. leadership: null if
  // this coordinator is the only one.
  absl::StatusOr<int> Serve(
      const Address& address, std::function<Totals()> totals,
      std::function<std::vector<StragglerNode>()> take_lateness,
      const Leadership* leadership = nullptr);
  void StopServing();

 private:
  void Count(const Send&) {}
  void Count(const Close&) {}
  void Count(const OperationIssued& fact);
  void Count(const RunIssued& fact);
  void Count(const BucketRan& fact);
  void Count(const ScheduleBegun&) { schedules_->Increment(); }
  void Count(const ScheduleOver& fact);
  void Count(const ErrorCounted& fact);
  void Count(const ResultsCompared& fact);
  void Count(const Reconnected&) { reconnects_->Increment(); }
  void Count(const MessageRelayed&) { relayed_->Increment(); }
  void Count(const StragglerNode& fact);
  void Count(const Log& line);

  std::shared_ptr<prometheus::Registry> registry_;
  std::vector<prometheus::Counter*> operations_;  // by Kind
  std::vector<prometheus::Counter*> bytes_;       // by Kind
  std::vector<prometheus::Counter*> buckets_;     // by BucketEnd
  std::vector<prometheus::Counter*> errors_;      // by ErrorKind
  std::vector<prometheus::Counter*> events_;      // by Level
  prometheus::Counter* results_equal_;
  prometheus::Counter* results_different_;
  prometheus::Counter* results_unchecked_;
  prometheus::Counter* runs_;
  prometheus::Counter* schedules_;
  prometheus::Counter* scheduled_operations_;
  std::vector<prometheus::Counter*> schedule_ends_;  // by proto::ScheduleEnd
  prometheus::Counter* reconnects_;
  prometheus::Counter* relayed_;
  prometheus::Histogram* run_operations_;
  prometheus::Histogram* negotiation_;
  const std::shared_ptr<StragglerNodes> straggler_nodes_;
  std::unique_ptr<MetricsServer> server_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_METRICS_H_
