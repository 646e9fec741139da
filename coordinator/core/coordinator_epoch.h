// CoordinatorEpoch: the life of a job with fixed ranks, from EpochStart to the
// epoch's end.
//
// Purpose: exchanges the nodes' endpoints, turns presence into runs in one
// order for the whole job, and fails operations that cannot run.
//
// Who is told: a run or a mismatch goes to all nodes of the process set (all
// have reported the operation). If a rank's leaving makes an operation
// impossible, OperationFailed goes to the nodes that have reported it; the
// other nodes learn from RankLeft. So every reported presence gets exactly one
// answer: its place in a run, OperationFailed, or the epoch's end. An operation
// stays in the table, and can fail, until its run is issued.
//
// Thread contract: not synchronized; pure.
//
// Invariants: members are ordered by smallest rank and do not change. There is
// one order of runs; each node gets the runs of process sets with ranks there,
// in that order, numbered from 1 without gaps. After a rank has left, no run
// that needs it is issued.
#ifndef MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
#define MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/admin/job_stats.h"
#include "coordinator/core/liveness/deadlock.h"
#include "coordinator/core/liveness/stragglers.h"
#include "coordinator/core/membership/gathering.h"
#include "coordinator/core/membership/joins.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/buckets.h"
#include "coordinator/core/ordering/communicators.h"
#include "coordinator/core/ordering/presence.h"
#include "coordinator/core/ordering/steps.h"
#include "coordinator/core/results/result_comparison.h"
#include "coordinator/core/timeline.h"
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

  // Of an elastic job; for EpochStart.
  void SetElasticSizes(uint32_t min_size, uint32_t max_size) {
    min_size_ = min_size;
    max_size_ = max_size;
  }
  // Sends EpochStart to all nodes. Decisions have numbers beyond
  // `last_decision`.
  void Start(uint64_t last_decision, JobOutput* out);
  // Goes on with an epoch that another coordinator has begun, instead of
  // Start(). `states`: by member; null: the node is not there or has no part in
  // the epoch any more; without a start: it has not heard of the epoch. `left`:
  // ranks that have left. Sends each node what it lacks, then Recovered.
  // (recovery/coordinator_epoch_recovery.cc)
  void Restore(const std::vector<const proto::NodeState*>& states,
               const std::set<uint32_t>& left, uint64_t last_decision,
               JobOutput* out);
  uint64_t last_decision() const { return decision_; }

  // Handles a message of this epoch from member `node` (an index into
  // members()). Job handles RankGone and ExecutorFailed itself. An error means
  // that the executor violates the protocol.
  absl::Status Handle(Time now, size_t node,
                      const proto::ExecutorMessage& message, JobOutput* out);
  // Runs operations that have waited too long for their bucket, reports
  // stragglers, and looks for deadlocks.
  void OnTime(Time now, JobOutput* out);
  std::optional<Time> Deadline() const;
  // The rank has left cleanly.
  void OnRankLeft(uint32_t rank, JobOutput* out);

  // The executors pass on what is sent to all nodes (relays.h), in a tree with
  // this fan-out; 0: they do not.
  uint32_t RelayFanOut() const;
  // See proto PresentOperation.inputs_sent.
  bool SendsInputs() const;

  // The reason that the epoch itself has found why it must end; empty if there
  // is none.
  const std::string& verdict() const { return verdict_; }

  // Sends EpochEnd(ABORTED) to all connected nodes.
  void End(const std::string& message, JobOutput* out);

  // The member's session has ended: nothing is sent to it any more.
  void Forget(size_t node) { connected_[node] = false; }

  std::optional<size_t> IndexOf(SessionId session) const;
  std::vector<uint32_t> LiveRanks(size_t node) const;
  bool HasLeft(uint32_t rank) const {
    return rank < has_left_.size() && has_left_[rank];
  }
  bool AllLeft() const { return left_.size() == size_; }
  // All nodes have all their ranks.
  bool Whole() const {
    return left_.empty() && std::find(connected_.begin(), connected_.end(),
                                      false) == connected_.end();
  }

  uint64_t number() const { return number_; }
  uint32_t size() const { return size_; }
  const std::vector<NodeMember>& members() const { return members_; }
  size_t pending() const { return table_.pending(); }
  // Some nodes execute a schedule.
  bool frozen() const {
    return std::find(follows_.begin(), follows_.end(), true) != follows_.end();
  }
  const Stragglers& stragglers() const { return stragglers_; }
  // How long other nodes have waited for the node since the last call.
  Time TakeStragglerTime(Time now, size_t node) {
    return table_.straggler_time().Take(now, node);
  }
  // Fills in the job's status, and the status of one member's node.
  // (admin/coordinator_epoch_status.cc)
  void FillStatus(proto::JobStatus* status) const;
  void FillStatus(Time now, size_t node, proto::NodeStatus* status) const;
  // What the nodes do now (admin/job_stats.h). Watch() lets them count.
  void Watch(Time now, JobOutput* out);
  void FillStats(Time now, proto::JobStatus* status) const {
    stats_.Fill(now, status);
  }
  // The operator starts the timeline, which is then in the file of the first
  // rank, or stops it. FAILED_PRECONDITION: TimelineRelay has the reason, or
  // all ranks have left, or executors are too old.
  absl::Status RecordTimeline(absl::string_view job, bool stop, JobOutput* out);

 private:
  absl::Status Dispatch(Time now, size_t node,
                        const proto::ExecutorMessage& message, JobOutput* out);
  absl::Status OnTimeline(Time now, size_t node,
                          const proto::ExecutorMessage& message,
                          JobOutput* out);
  void SendTimeline(TimelineRelay::Messages messages, JobOutput* out);
  absl::Status StartTimeline(absl::string_view job,
                             TimelineRelay::Messages* messages);
  void FillTimeline(proto::TimelineStatus* status) const;
  proto::EpochStart MakeStart() const;
  void SendStart(size_t node, JobOutput* out);
  void RestoreLeft(const std::set<uint32_t>& left);
  void RestoreSchedule(const std::vector<const proto::NodeState*>& states);
  // The node does not know the schedule that others follow.
  void SendRefusal(size_t node, JobOutput* out);
  // Sends a decision of another coordinator to the node, if it concerns it.
  void Reissue(size_t node, const proto::Decision& decision, JobOutput* out);
  absl::Status OnEndpoint(size_t node, const proto::Endpoint& message,
                          JobOutput* out);
  void SendEndpoints(JobOutput* out);
  // The NCCL that all nodes have; 0 if there is none.
  uint32_t AgreedNccl(JobOutput* out) const;
  absl::Status OnPresence(Time now, size_t node, const proto::Presence& message,
                          JobOutput* out);
  absl::Status OnCommunicatorId(size_t node,
                                const proto::CommunicatorId& message,
                                JobOutput* out);
  absl::Status OnRankGpu(size_t node, const proto::RankGpu& message);
  // Tells the nodes of communicators that are new.
  void TellCommunicators(JobOutput* out);
  void SendCommunicator(const Communicator& c, const Communicator::Part& part,
                        JobOutput* out);
  // What the node lacks of the communicators, and their ids.
  void SendCommunicators(size_t node,
                         const std::vector<const proto::NodeState*>& states,
                         JobOutput* out);
  absl::Status OnSetRequest(Time now, size_t node,
                            const proto::SetRequest& message, JobOutput* out);
  absl::Status OnResults(size_t node, const proto::Results& message,
                         JobOutput* out);
  // The epoch is over: decides about the results that are known.
  void FinishResults(JobOutput* out);
  void TellDifferences(const std::vector<ResultDifference>& found,
                       JobOutput* out);
  absl::Status OnJoinState(Time now, size_t node,
                           const proto::JoinState& message, JobOutput* out);
  void TellLeft(JobOutput* out);
  // In the way that the node's version knows. `together`: LeftMessage(ranks).
  void SendLeft(size_t node, const std::vector<uint32_t>& ranks,
                const Outgoing& together, JobOutput* out);
  Outgoing LeftMessage(const std::vector<uint32_t>& ranks) const;
  // All nodes speak this version or a later one.
  bool AllKnow(uint32_t version) const;
  // True if the node's session has this version or a later one.
  bool Knows(size_t node, uint32_t version) const {
    return version <= std::min(members_[node].versions.newest, newest_version_);
  }
  void SendReplies(ProcessSets::Replies replies, JobOutput* out);
  void SendReplies(Joins::Replies replies, JobOutput* out);
  void CheckForStragglers(Time now, JobOutput* out);
  void TellStragglerTime(JobOutput* out);  // when the epoch ends
  void CheckForDeadlock(Time now, JobOutput* out);
  // Sends a Notice to the node of the first of these ranks that has not left
  // (it waits, so it prints the notice at once); if all have left, to the node
  // of the smallest rank.
  void Notify(const std::vector<uint32_t>& waiting, const std::string& text,
              JobOutput* out);
  std::string LogPrefix(absl::string_view event) const;
  // Asks nodes whose ranks all stand aside to submit the operation, too.
  void AskToStandIn(NegotiatedOperation* op, JobOutput* out);
  absl::Status Report(Time now, size_t node,
                      const proto::PresentOperation& message, Release* release,
                      JobOutput* out);
  absl::Status OnUrgent(size_t node, const proto::UrgentOperation& message,
                        Release* release);
  absl::Status OnRetireNames(Time now, size_t node,
                             const proto::RetireNames& message, JobOutput* out);
  // Sends NamesRetired for the names that the table has forgotten.
  void TellForgotten(Release* release, JobOutput* out);
  void Issue(Time now, const Release& release, JobOutput* out);
  // --- The frozen tier (coordinator_epoch_schedule.cc) -----------------------
  bool MayBeginSchedule() const;
  void BeginSchedule(JobOutput* out);
  // The part of the schedule that concerns the node.
  bool FitsTree(const std::vector<std::vector<ReadyOperation>>& runs);
  proto::Schedule ScheduleFor(
      size_t node, const std::vector<std::vector<ReadyOperation>>& runs);
  absl::Status OnScheduleEnded(size_t node, const proto::ScheduleEnded& message,
                               JobOutput* out);
  // Runs in the order of the job, each with its process set.
  using Runs = std::vector<std::pair<const RankSet*, proto::Run>>;
  // Fuses these operations with one another, and appends their runs.
  void AddRuns(Time now, const std::vector<ReadyOperation>& ready, Runs* runs,
               JobOutput* out);
  // Numbers the runs for each node, and sends it those that concern it.
  void SendRuns(const Runs& runs, JobOutput* out);
  // The messages with these runs (indices), numbered from `first`.
  std::vector<Outgoing> Executes(const Runs& runs,
                                 const std::vector<size_t>& mine,
                                 uint64_t first) const;
  proto::Run MakeRun(const std::vector<ReadyOperation>& ready,
                     const std::vector<size_t>& run);
  // `decision`: of Fail(); 0: it concerns this node only.
  void FailOn(size_t node, const NegotiatedOperation& op, uint32_t generation,
              const absl::Status& status, uint64_t decision, JobOutput* out);
  // Fails the operation on all nodes that have reported it.
  void Fail(NegotiatedOperation* op, const absl::Status& status,
            JobOutput* out);
  // OK, or why the operation cannot run: a rank of its set has left, or the set
  // was removed.
  absl::Status CheckSet(const NegotiatedOperation& op) const;
  std::string WhoText(uint32_t rank) const;  // "rank 2 (node n1)"
  void ToAll(const Outgoing& message, JobOutput* out);
  void ToNode(size_t node, Outgoing message, JobOutput* out);

  const uint64_t number_;
  const uint32_t size_;
  const std::vector<NodeMember> members_;
  const std::string job_;
  uint32_t min_size_ = 0;  // of an elastic job
  uint32_t max_size_ = 0;
  uint64_t decision_ = 0;  // the last one of the job, see proto Decision
  const uint64_t fusion_threshold_;
  const Time stall_check_;
  const Time stall_shutdown_;
  std::unordered_map<SessionId, size_t> index_;      // of each member
  std::vector<bool> connected_;                      // by member
  std::vector<std::vector<std::string>> endpoints_;  // by member; empty: none
  std::vector<uint32_t> nccl_versions_;              // by member; 0: none
  size_t endpoints_given_ = 0;
  ProcessSets sets_;
  Joins joins_;
  OperationTable table_;
  Buckets buckets_;  // of operations that are complete in table_
  Communicators communicators_;
  // By rank and UUID of the GPU: the last message.
  std::map<std::pair<uint32_t, std::string>, proto::RankGpu> rank_gpus_;
  Stragglers stragglers_;
  std::vector<uint32_t> told_;  // Report::waiting of the last notice
  Deadlock deadlock_;
  const ChecksumMode checksums_;
  ResultComparison results_;
  uint64_t differences_told_ = 0;
  TimelineRelay timeline_;
  JobStats stats_;
  std::string verdict_;
  std::vector<uint32_t> left_;  // ranks, in the order of leaving
  std::vector<bool> has_left_;  // by rank
  std::vector<uint32_t>
      left_untold_;                  // those of which RankLeft is not sent yet
  Time left_told_at_{};              // when OnTime() has sent the last one
  std::vector<uint64_t> sent_;       // by member: messages of the epoch
  std::vector<uint64_t> node_runs_;  // by member: runs sent to it
  uint64_t runs_ = 0;
  uint64_t operations_ = 0;  // issued

  const uint32_t newest_version_;
  const size_t frozen_nodes_;
  const size_t eager_nodes_;
  const size_t relay_nodes_;
  const uint32_t fan_out_;
  Steps steps_;
  uint64_t schedule_ = 0;            // number of the last schedule
  uint32_t schedule_fan_out_ = 0;    // of the last schedule
  size_t schedule_runs_ = 0;         // of a round
  std::vector<uint32_t> scheduled_;  // ids
  std::vector<bool> follows_;        // by member: it has not left the schedule
  // Of the last schedule that has ended: as its nodes have said.
  proto::ScheduleEnded schedule_ended_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_COORDINATOR_EPOCH_H_
