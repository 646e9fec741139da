// StallMonitor: what the coordinator does about stragglers.
//
// Purpose: logs what Stragglers finds, and notifies a node whose rank waits (it
// prints the notice at once). Gives the reason to end the epoch: the stall
// shutdown time has passed, or no rank can continue.
//
//   StallMonitor stalls(&nodes, &departures, &sets, &table, &joins, config);
//   stalls.OnEvent(now);                     // after each message of the epoch
//   if (stalls.Deadline() <= now) stalls.OnTime(now);
//   if (!stalls.verdict().ok()) ...end the epoch with it...
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_LIVENESS_STALL_MONITOR_H_
#define MAYPOLE_COORDINATOR_CORE_LIVENESS_STALL_MONITOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/liveness/deadlock.h"
#include "coordinator/core/liveness/stragglers.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class StallMonitor {
 public:
  // All pointers must outlive this object.
  StallMonitor(EpochNodes* nodes, const Departures* departures,
               const ProcessSets* sets, const OperationTable* table,
               const Joins* joins, const Config& config);

  // An error means that the executor violates the protocol.
  absl::Status OnLate(Time now, size_t node,
                      const proto::LateOperations& message);
  absl::Status OnBlocked(size_t node, const proto::Blocked& message) {
    return deadlock_.Take(node, message);
  }
  void OnRankLeft() { deadlock_.Wake(); }
  // The rank stands aside from now on.
  void OnAside(Time now, uint32_t rank) { stragglers_.OnAside(now, rank); }
  void OnEvent(Time now);
  void OnTime(Time now);
  std::optional<Time> Deadline() const;

  const Stragglers& stragglers() const { return stragglers_; }
  // OK, or why the epoch must end. FAILED_PRECONDITION: ranks wait for each
  // other, which would recur, so elastic ranks do not try again.
  const absl::Status& verdict() const { return verdict_; }

 private:
  void CheckForStragglers(Time now);
  void CheckForDeadlock(Time now);
  // Sends a Notice to the node of the first of these ranks that has not left;
  // if all have, to that of the smallest rank.
  void Notify(const std::vector<uint32_t>& waiting, const std::string& text);

  EpochNodes& nodes_;
  const Departures& departures_;
  const Time shutdown_;
  Stragglers stragglers_;
  Deadlock deadlock_;
  std::vector<uint32_t> notified_;  // Report::waiting of the last notice
  absl::Status verdict_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_STALL_MONITOR_H_
