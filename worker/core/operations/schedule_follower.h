// ScheduleFollower: this node's part in the frozen tier (docs/schedule.md).
//
// Purpose: begins the schedules that the coordinator sends. While one is
// active, operations that are present here go to it instead of to the
// coordinator, and its runs go to the board. An operation or event that is not
// in the schedule ends it; then the follower reports to the coordinator what is
// pending.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error means that the epoch cannot continue.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_FOLLOWER_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_FOLLOWER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/left_ranks.h"
#include "worker/core/operations/presence.h"
#include "worker/core/operations/runs.h"
#include "worker/core/operations/schedule.h"
#include "worker/core/operations/slots.h"
#include "worker/core/operations/small_runs.h"

namespace maypole::worker {

class ScheduleFollower {
 public:
  // All must outlive this object.
  ScheduleFollower(const EpochInfo& info, const LeftRanks& left,
                   SlotTable* slots, PresenceBatch* presence, RunQueue* runs,
                   SmallRuns* small_runs, EpochOutput* output)
      : info_(info),
        left_(left),
        slots_(*slots),
        presence_(*presence),
        runs_(*runs),
        small_runs_(*small_runs),
        output_(*output),
        schedule_(info.node_index, static_cast<uint32_t>(info.nodes.size())) {}

  absl::Status OnSchedule(const proto::Schedule& message);
  // A message of another node about its schedule.
  absl::Status OnPeer(uint32_t node, const proto::PeerMessage& message);
  absl::Status OnTime(int64_t now_ms);
  // Call OnTime() within this many milliseconds; -1: no need.
  int64_t WaitMs() const { return schedule_.WaitMs(); }

  // The operation is present here. This and AddUrgent() need an active
  // schedule.
  absl::Status Add(uint32_t slot, const SlotEntry& entry);
  // A rank waits for an operation that was added.
  void AddUrgent(uint32_t slot) { schedule_.Urge(slot); }
  // Ends the schedule, if one is active.
  absl::Status Leave(proto::ScheduleEnd why, const std::string& text);

  bool active() const { return schedule_.active(); }
  const Schedule& schedule() const { return schedule_; }

  // For a coordinator that has replaced another.
  void FillState(proto::NodeState* state) const;
  void OnCoordinatorReplaced() { unsent_end_.reset(); }
  // Reports what is pending, with names instead of ids. Returns false if a
  // schedule must end first.
  bool OnRecovered();

 private:
  // Returns the scheduled runs of this node.
  absl::StatusOr<std::vector<ScheduledRun>> Read(
      const proto::Schedule& message);
  // Sends the schedule's messages, executes its runs, and ends it if it is
  // over.
  absl::Status Follow();
  absl::Status Execute(const std::vector<uint32_t>& slots);
  void End();
  void ReportPending();

  const EpochInfo& info_;
  const LeftRanks& left_;
  SlotTable& slots_;
  PresenceBatch& presence_;
  RunQueue& runs_;
  SmallRuns& small_runs_;
  EpochOutput& output_;
  Schedule schedule_;
  std::map<uint32_t, Signature> scheduled_;  // by slot
  uint64_t operations_ = 0;                  // executed, of this schedule
  int64_t now_ms_ = 0;
  bool forget_ids_at_end_ = false;
  // A ScheduleEnded message; a coordinator that has replaced another gets it
  // before the report of what is pending.
  std::optional<proto::ExecutorMessage> unsent_end_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_FOLLOWER_H_
