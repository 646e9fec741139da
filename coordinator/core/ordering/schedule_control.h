// ScheduleControl: the frozen tier of an epoch (docs/schedule.md): which nodes
// execute which schedule.
//
// Purpose: when a job repeats its steps, sends all nodes the schedule of a
// step. While they execute it, they report nothing; reports from before that
// were not issued are dropped. Nodes leave the schedule one after the other;
// when all have, the job is negotiated again.
//
//   state        reached by           consequence
//   negotiated   at first             the coordinator orders operations
//   frozen       BeginIfRepeated()    Follows(node) of all connected nodes
//   thawing      OnEnded() of a node  it is negotiated, the others are frozen
//   negotiated   OnEnded() of all     Steps learns how long the schedule lasted
//
// Thread contract: not synchronized; pure.
//
// Invariants: a schedule begins only while no node follows another one.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_SCHEDULE_CONTROL_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_SCHEDULE_CONTROL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/ordering/buckets.h"
#include "coordinator/core/ordering/joins.h"
#include "coordinator/core/ordering/presence.h"
#include "coordinator/core/ordering/steps.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class ScheduleControl {
 public:
  // All pointers must outlive this object.
  ScheduleControl(EpochNodes* nodes, const Departures* departures,
                  const Joins* joins, OperationTable* table, Buckets* buckets,
                  Steps* steps, const Config& config);

  // Begins a schedule if Steps has just found one, and all is ready for it.
  void BeginIfRepeated();
  // An error means that the executor violates the protocol.
  absl::Status OnEnded(size_t node, const proto::ScheduleEnded& message);
  // Takes over another coordinator's schedule. `states`: by node; null for
  // nodes that are not connected.
  void Restore(const std::vector<const proto::NodeState*>& states);
  // Tells the node to refuse the schedule if it does not know the schedule and
  // others follow it.
  void RefuseIfUnknown(size_t node, const proto::NodeState& state);

  bool Follows(size_t node) const { return follows_[node]; }
  bool frozen() const;  // some node follows it
  void FillStatus(proto::JobStatus* status) const;

 private:
  using Runs = std::vector<std::vector<ReadyOperation>>;
  bool MayBegin() const;
  // All nodes take part in all runs, and support schedules in a tree.
  bool FitsTree(const Runs& runs) const;
  const RankSet& SetOf(const std::vector<ReadyOperation>& run) const {
    return *table_.Find(run.front().id)->set;
  }
  // The last schedule, without runs.
  proto::Schedule Header() const;
  // With the runs that concern the node.
  proto::Schedule ScheduleFor(size_t node, const Runs& runs) const;
  void LogIfRare(absl::string_view event, const std::string& fields);

  EpochNodes& nodes_;
  const Departures& departures_;
  const Joins& joins_;
  OperationTable& table_;
  Buckets& buckets_;
  Steps& steps_;
  const size_t most_nodes_;  // without a tree; 0: no schedules
  const uint32_t tree_fan_out_;
  uint64_t number_ = 0;              // of the last schedule
  uint32_t fan_out_ = 0;             // of the last schedule
  size_t length_ = 0;                // runs of a round
  std::vector<uint32_t> scheduled_;  // ids
  std::vector<bool> follows_;        // by node: it has not left the schedule
  // For the last schedule: the first node's message, with the greatest number
  // of runs of any node.
  proto::ScheduleEnded ended_;
  uint64_t runs_ = 0;  // of schedules that are over
  uint64_t operations_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_SCHEDULE_CONTROL_H_
