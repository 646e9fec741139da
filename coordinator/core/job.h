// Job: one training job with its executors, starts and epochs.
//
// Purpose: gathers the ranks of the next epoch, runs the current epoch, and
// decides when either ends (docs/design.md section 12, "Who ends what").
//
//   state      epoch            ends when
//   starting   being gathered   all ranks are ready -> running;
//                               the start fails -> ended
//   running    exists           all ranks have left, or a rank or an executor
//                               was lost -> ended
//   ended      none             RanksReady -> starting
//
// Ranks that have left a running epoch may already gather for the next one: in
// FixedStart or, if they say that they are elastic, in Elastic. Only one of the
// two has ranks at a time.
//
// Thread contract: not synchronized; pure.
//
// Invariants: every session of the job is in nodes_, among them those that wait
// and the connected members of the epoch.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/job_recovery.h"
#include "coordinator/core/membership/elastic.h"
#include "coordinator/core/membership/fixed_start.h"
#include "coordinator/core/membership/job_nodes.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Job {
 public:
  // `output` must outlive this object.
  Job(std::string id, const Config& config, JobOutput* output);

  // Adds a new executor (a node without ranks). The caller has checked that no
  // other executor uses the node's name.
  void Join(Time now, NodeMember node);
  // See JobRecovery.
  void Await(Time now, SessionId session, const std::string& node) {
    recovery_.Await(now, session, node);
  }
  // While true, Handle() accepts only NodeState.
  bool recovering() const { return recovery_.active(); }
  void PostponeRecovery(Time deadline) { recovery_.Postpone(deadline); }
  std::optional<SessionId> SessionOf(const std::string& node) const {
    return nodes_.SessionOf(node);
  }

  // True if the session has ranks that wait for an epoch or take part in one.
  bool Needs(SessionId session) const;

  // Handles the payload of a message. An error means that the executor violates
  // the protocol; the caller then ends its session.
  absl::Status Handle(Time now, SessionId session,
                      const proto::ExecutorMessage& message);

  // The session has ended; `how` completes "the executor of node n1 ".
  void Lost(Time now, SessionId session, const std::string& how);

  // The coordinator ends: ends the epoch and the start with this message.
  void Stop(const std::string& message);
  // The operator ends the job: like Stop(), and no other epoch starts as long
  // as the job exists. Returns how many ranks were notified.
  uint32_t Abort(Time now, const std::string& message);

  // When OnTime() must be called; nullopt if there is no need.
  std::optional<Time> Deadline() const;
  void OnTime(Time now);

  // Null if none runs.
  const CoordinatorEpoch* epoch() const { return epoch_.get(); }
  CoordinatorEpoch* epoch() { return epoch_.get(); }
  // Fills in everything except which nodes are connected.
  void FillStatus(Time now, proto::JobStatus* status) const;
  // The operator starts or stops the timeline, see TimelineRelay.
  // FAILED_PRECONDITION also if no epoch runs.
  absl::StatusOr<proto::TimelineStatus> RecordTimeline(bool stop,
                                                       absl::string_view who);

 private:
  absl::Status Dispatch(Time now, SessionId session,
                        const proto::ExecutorMessage& message);
  absl::Status OnReady(Time now, SessionId session,
                       const proto::RanksReady& ready);
  absl::Status OnWaiting(Time now, SessionId session,
                         const proto::RanksWaiting& waiting);
  absl::Status OnElasticReady(Time now, SessionId session,
                              const proto::RanksReady& ready);
  absl::Status OnGone(SessionId session, uint64_t epoch,
                      const proto::RankGone& gone);
  absl::Status OnGoneFromEpoch(size_t node, const proto::RankGone& gone);
  absl::Status OnFailed(SessionId session, uint64_t epoch,
                        const proto::ExecutorFailed& failed);
  absl::Status OnNodeState(SessionId session, const proto::NodeState& state);
  // Handles a message that has the number of its epoch.
  absl::Status OnEpochMessage(Time now, SessionId session,
                              const proto::ExecutorMessage& message);

  // OK for the current epoch and past ones (a message may cross the epoch's
  // end, and is dropped); an error for an epoch that has not been announced.
  absl::Status CheckEpoch(uint64_t epoch) const;
  // The node's index in the running epoch; nullopt if the node is not in it, or
  // `epoch` is another one. 0: whichever runs.
  std::optional<size_t> IndexIn(uint64_t epoch, SessionId session) const;
  bool IsElasticEpoch() const;
  // The ranks of the node that have not left the epoch.
  std::vector<uint32_t> LiveRanks(SessionId session) const;
  std::vector<uint32_t> LiveRanks() const;

  // If ranks of this kind cannot wait in this job, tells them why and returns
  // true: it was aborted, or its other ranks are of the other kind.
  bool Refuses(SessionId session, bool elastic);
  void StartIfComplete();
  // Begins the epoch after nodes_.epoch().
  void Begin(std::vector<NodeMember> members);
  void StartElastic();
  void OnElasticTime(Time now);
  // Tells the nodes of the running epoch how many ranks want to enter or leave,
  // if that has changed.
  void SendWanted();
  std::string RunningText() const;

  // --- A coordinator before this one -----------------------------------------
  void FinishRecoveryIfComplete() {
    if (recovery_.Complete()) FinishRecovery();
  }
  void FinishRecovery();

  void LoseMember(SessionId session, const std::string& how);
  // Ends the epoch if it has found a reason to end.
  void EndIfDecided();
  void EndEpoch(const absl::Status& why);
  void DropEpoch();
  // "starting", "running" or "ended".
  std::string State() const;
  // Called after every event: notes when the job's state has changed.
  void NoteState(Time now);

  const Config config_;
  JobNodes nodes_;
  FixedStart start_;
  Elastic elastic_;
  JobRecovery recovery_;
  std::unique_ptr<CoordinatorEpoch> epoch_;
  uint64_t decisions_ = 0;  // the last decision's number, of all earlier epochs
  std::optional<std::string> aborted_;  // the message for the ranks
  // The last noted state, and its epoch.
  std::pair<std::string, uint64_t> seen_{"starting", 0};
  Time seen_since_{};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_H_
