// CoordinatorEpoch: one life of a job with fixed ranks, from EpochStart to its
// end.
//
// Purpose: exchanges the nodes' endpoints, turns presence into runs in the one
// order of the job, and fails what cannot run.
//
// Who is told what: a run and a mismatch go to all nodes of the process set
// (all have submitted it); an operation that a rank's leaving makes impossible
// goes to the nodes that have reported it, the others learn by RankLeft. So
// every reported presence gets exactly one answer: its place in a run,
// OperationFailed, or the epoch's end. An operation stays in the table, and can
// fail, until its run is issued.
//
// Thread contract: not synchronized; pure.
//
// Invariants: members are ordered by smallest rank and do not change; there is
// one order of runs, each node gets those of process sets with ranks there, in
// that order, numbered from 1 without gaps; nothing is issued any more that
// needs a rank that has left.
#ifndef MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
#define MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/liveness/deadlock.h"
#include "coordinator/core/liveness/stragglers.h"
#include "coordinator/core/membership/gathering.h"
#include "coordinator/core/membership/joins.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/buckets.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class CoordinatorEpoch {
 public:
  CoordinatorEpoch(uint64_t number, uint32_t size,
                   std::vector<NodeMember> members, const Config& config,
                   std::string job);
  CoordinatorEpoch(const CoordinatorEpoch&) = delete;
  CoordinatorEpoch& operator=(const CoordinatorEpoch&) = delete;

  // EpochStart to all.
  void Start(JobOutput* out);

  // A message of this epoch from member `node` (an index into members()), of
  // any kind but those that the job decides (RankGone, ExecutorFailed). An
  // error means that the executor breaks the protocol.
  absl::Status Handle(Time now, size_t node,
                      const proto::ExecutorMessage& message, JobOutput* out);
  // What has waited for its bucket too long runs; who is late is reported.
  void OnTime(Time now, JobOutput* out);
  std::optional<Time> Deadline() const;
  // The rank has left cleanly.
  void OnRankLeft(uint32_t rank, JobOutput* out);

  // Why the epoch must end, as it has found itself; empty: it need not.
  const std::string& verdict() const { return verdict_; }

  // EpochEnd(ABORTED) to all who are connected.
  void End(const std::string& message, JobOutput* out);

  // The member's session is gone for ever: it is sent nothing any more.
  void Forget(size_t node) { connected_[node] = false; }

  std::optional<size_t> IndexOf(SessionId session) const;
  std::vector<uint32_t> LiveRanks(size_t node) const;
  bool HasLeft(uint32_t rank) const {
    return std::find(left_.begin(), left_.end(), rank) != left_.end();
  }
  bool AllLeft() const { return left_.size() == size_; }

  uint64_t number() const { return number_; }
  uint32_t size() const { return size_; }
  const std::vector<NodeMember>& members() const { return members_; }
  size_t pending() const { return table_.pending(); }
  const Stragglers& late() const { return late_; }
  // How long others have waited for the node since the last call.
  Time TakeStragglerTime(Time now, size_t node) {
    return table_.straggler_time().Take(now, node);
  }
  // Of the job, and of the node that is this member. (status.cc)
  void FillStatus(proto::JobStatus* status) const;
  void FillStatus(size_t node, proto::NodeStatus* status) const;

 private:
  absl::Status Dispatch(Time now, size_t node,
                        const proto::ExecutorMessage& message, JobOutput* out);
  absl::Status OnEndpoint(size_t node, const proto::Endpoint& message,
                          JobOutput* out);
  absl::Status OnPresence(Time now, size_t node, const proto::Presence& message,
                          JobOutput* out);
  absl::Status OnSetRequest(Time now, size_t node,
                            const proto::SetRequest& message, JobOutput* out);
  absl::Status OnJoinState(Time now, size_t node,
                           const proto::JoinState& message, JobOutput* out);
  void SendReplies(ProcessSets::Replies replies, JobOutput* out);
  void SendReplies(Joins::Replies replies, JobOutput* out);
  void LookForStragglers(Time now, JobOutput* out);
  void TellStragglerTime(JobOutput* out);  // when the epoch ends
  void LookForDeadlock(Time now, JobOutput* out);
  // To the node of the first of these ranks that has not left (a process that
  // waits prints it at once), or of the smallest rank of all.
  void Notify(const std::vector<uint32_t>& waiting, const std::string& text,
              JobOutput* out);
  std::string LogPrefix(absl::string_view event) const;
  // Asks nodes whose ranks stand aside to submit it too.
  void AskToStandIn(NegotiatedOperation* op, JobOutput* out);
  absl::Status Report(Time now, size_t node,
                      const proto::PresentOperation& message, Release* release,
                      JobOutput* out);
  absl::Status OnUrgent(size_t node, const proto::UrgentOperation& message,
                        Release* release);
  absl::Status OnRetireNames(Time now, size_t node,
                             const proto::RetireNames& message, JobOutput* out);
  // Tells the nodes what the table has forgotten.
  void TellForgotten(Release* release, JobOutput* out);
  void Issue(Time now, const Release& release, JobOutput* out);
  // Runs in the order of the job, each with its process set.
  using Runs = std::vector<std::pair<const RankSet*, proto::Run>>;
  // The runs of what is fused by itself.
  void AddRuns(Time now, const std::vector<ReadyOperation>& ready, Runs* runs,
               JobOutput* out);
  // Numbers those that concern the node and sends them.
  void SendRuns(size_t node, const Runs& runs, JobOutput* out);
  proto::Run MakeRun(const std::vector<ReadyOperation>& ready,
                     const std::vector<size_t>& run);
  void FailOn(size_t node, const NegotiatedOperation& op, uint32_t generation,
              const absl::Status& status, JobOutput* out);
  // Fails it on all nodes that have reported it.
  void Fail(NegotiatedOperation* op, const absl::Status& status,
            JobOutput* out);
  // Why the operation cannot run: OK, or a rank of its set has left, or the set
  // was removed.
  absl::Status CheckSet(const NegotiatedOperation& op) const;
  std::string WhoText(uint32_t rank) const;  // "rank 2 (node n1)"
  void ToAll(const proto::CoordinatorMessage& message, JobOutput* out);
  void ToNode(size_t node, proto::CoordinatorMessage message, JobOutput* out);

  const uint64_t number_;
  const uint32_t size_;
  const std::vector<NodeMember> members_;
  const std::string job_;
  const uint64_t fusion_threshold_;
  const Time stall_check_;
  const Time stall_shutdown_;
  std::vector<bool> connected_;                      // by member
  std::vector<std::vector<std::string>> endpoints_;  // by member; empty: none
  size_t endpoints_given_ = 0;
  ProcessSets sets_;
  Joins joins_;
  OperationTable table_;
  Buckets buckets_;  // of operations that are complete in table_
  Stragglers late_;
  std::vector<uint32_t> told_;  // Report::waiting of the last notice
  Deadlock deadlock_;
  std::string verdict_;
  std::vector<uint32_t> left_;       // in the order in which they have
  std::vector<uint64_t> sent_;       // by member: messages of the epoch
  std::vector<uint64_t> node_runs_;  // by member: sent to it
  uint64_t runs_ = 0;
  uint64_t operations_ = 0;  // issued
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
