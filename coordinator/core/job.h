// Job: one training job; its executors, its starts and its epochs.
//
// Purpose: gathers the ranks of the next epoch, runs the current one, and
// decides what ends either (docs/design.md section 12, "Who ends what").
//
//   state      an epoch is      what ends it
//   starting   being gathered   complete -> running; failed start -> ended
//   running    there            all ranks left, or something was lost -> ended
//   ended      not there        RanksReady -> starting
//
// Ranks that have left a running epoch may already gather for the next one.
//
// A failed start is told to all who wait, and to those who come late (they
// belonged to it): until one of those who were told tries again.
//
// An elastic job (its ranks say so) has elastic_ in place of the gathering,
// which then only holds the members of an epoch while it starts.
//
// Thread contract: not synchronized; pure.
//
// Invariants: every session of the job has one entry in nodes_; the members of
// the gathering and the connected members of the epoch are among them.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/membership/elastic.h"
#include "coordinator/core/membership/gathering.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Job {
 public:
  enum class State { kStarting, kRunning, kEnded };
  struct Node {
    std::string node;
    std::string host;
    std::string address;  // where the coordinator sees it; may be empty
    // EpochStarts, and EpochEnds of epoch 0, that it has been sent.
    uint64_t round = 0;
  };

  Job(std::string id, const Config& config);

  const std::string& id() const { return id_; }

  // A new executor. The caller has checked that the node's name is free.
  void Join(Time now, SessionId session, Node node);
  std::optional<SessionId> SessionOf(const std::string& node) const;
  bool empty() const { return nodes_.empty(); }
  size_t nodes() const { return nodes_.size(); }

  // The session has ranks that wait for an epoch or live in one.
  bool Needs(SessionId session) const;

  // The payload of a message. An error means that the executor breaks the
  // protocol; the caller gives its session up.
  absl::Status Handle(Time now, SessionId session,
                      const proto::ExecutorMessage& message, JobOutput* out);

  // The session is gone for ever; `how` completes "the executor of node n1 ".
  void Lost(Time now, SessionId session, const std::string& how,
            JobOutput* out);

  // The coordinator ends: everything running and waiting ends with the text.
  void Stop(const std::string& message, JobOutput* out);
  // The operator has so decided: as Stop(), and no other epoch starts as long
  // as the job exists. The ranks that were told.
  uint32_t Abort(Time now, const std::string& message, JobOutput* out);

  // When OnTime() must be called; none: no need.
  std::optional<Time> Deadline() const;
  void OnTime(Time now, JobOutput* out);

  size_t live_ranks() const;
  size_t pending() const { return epoch_ ? epoch_->pending() : 0; }
  // How long others have waited for the session's node since the last call.
  Time TakeStragglerTime(Time now, SessionId session);
  size_t late_ranks() const { return epoch_ ? epoch_->late().ranks() : 0; }
  size_t late_operations() const {
    return epoch_ ? epoch_->late().operations() : 0;
  }
  State state() const;
  // All but whether a node is connected.
  void FillStatus(Time now, proto::JobStatus* status) const;

 private:
  struct FailedStart {
    absl::StatusCode code = absl::StatusCode::kAborted;
    std::string message;
    std::set<SessionId> told;
  };

  absl::Status Dispatch(Time now, SessionId session,
                        const proto::ExecutorMessage& message, JobOutput* out);
  // The node, with none of its ranks yet.
  NodeMember MemberOf(SessionId session) const;
  // True: ranks that are not elastic cannot wait here, and have been told why.
  bool RefusesFixed(SessionId session, JobOutput* out);
  absl::Status OnReady(Time now, SessionId session,
                       const proto::RanksReady& ready, JobOutput* out);
  absl::Status OnWaiting(Time now, SessionId session,
                         const proto::RanksWaiting& waiting, JobOutput* out);
  absl::Status OnGone(SessionId session, const proto::RankGone& gone,
                      JobOutput* out);
  absl::Status OnGoneFromEpoch(size_t node, const proto::RankGone& gone,
                               JobOutput* out);
  absl::Status OnFailed(SessionId session, const proto::ExecutorFailed& failed,
                        JobOutput* out);
  // What the epoch decides by itself.
  absl::Status OnEpochMessage(Time now, SessionId session,
                              const proto::ExecutorMessage& message,
                              JobOutput* out);

  // An epoch of the past is all right (the message crossed its end and is
  // dropped), one that has not been announced is not.
  absl::Status CheckEpoch(uint64_t epoch) const;
  bool IsCurrent(uint64_t epoch) const {
    return epoch_ != nullptr && epoch == epoch_->number();
  }

  void StartIfComplete(JobOutput* out);
  // The config with what the ranks say of it.
  Config ConfigOfStart(JobOutput* out) const;
  void ReadStallTimes(Config* config, JobOutput* out) const;
  // If the epoch has found a reason to end.
  void EndIfDecided(JobOutput* out);
  std::optional<Time> StartDeadline() const;
  void StartTimedOut(JobOutput* out);
  // Tells all who wait but the reporter (0: none): it knows, and may be ready
  // for another start before it would hear of this one's end.
  void FailStart(const std::string& message, SessionId reporter, JobOutput* out,
                 absl::StatusCode code = absl::StatusCode::kAborted);
  void TellFailedStart(SessionId session, JobOutput* out);
  void LoseMember(SessionId session, const std::string& how, JobOutput* out);
  void EndEpoch(const std::string& message, JobOutput* out);

  // --- The operator (job_admin.cc) -------------------------------------------
  // After every event: since when the job has been in its state.
  void NoteState(Time now);
  void FillStatus(SessionId session, const Node& node,
                  proto::NodeStatus* status) const;
  // Ranks that wait on the node, after an abort.
  void RefuseAborted(SessionId session, JobOutput* out);

  // --- Elastic jobs (job_elastic.cc) -----------------------------------------
  absl::Status OnElasticReady(Time now, SessionId session,
                              const proto::RanksReady& ready, JobOutput* out);
  void OnElasticTime(Time now, JobOutput* out);
  bool IsElasticEpoch() const;
  bool TakesElastic() const;
  bool TakesFixed() const;
  // Ranks of the node are of the other sort than the job's.
  void RefuseMixed(SessionId session, bool elastic, JobOutput* out);
  // These clients of the node, or (none) all that wait there.
  void RefuseWaiting(SessionId session, const std::vector<uint64_t>& clients,
                     absl::StatusCode code, const std::string& message,
                     JobOutput* out);
  // Tells the nodes of the running epoch who wants to come or go, if that has
  // changed.
  void SendWanted(JobOutput* out);
  std::string RunningText() const;
  void StartElastic(JobOutput* out);
  void StopElastic(const std::string& message, JobOutput* out);

  std::string ExecutorText(const Node& node,
                           const std::vector<uint32_t>& ranks) const;
  std::string LogPrefix(absl::string_view event) const;

  const std::string id_;
  const Config config_;
  std::map<SessionId, Node> nodes_;
  Gathering gathering_;
  Elastic elastic_;
  std::pair<uint32_t, uint32_t> wanted_;  // as told: new ranks, leaving
  std::optional<Time> start_since_;       // somebody waits for a start
  std::optional<FailedStart> failed_start_;
  std::unique_ptr<CoordinatorEpoch> epoch_;
  uint64_t epoch_number_ = 0;           // of the current epoch or the last one
  std::optional<std::string> aborted_;  // what ranks are told
  std::pair<State, uint64_t> seen_;     // the state, and of which epoch
  Time seen_since_{};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_H_
