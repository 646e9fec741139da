// ExecutorCore: the executor's decisions, as a pure state machine.
//
// Purpose: serves one job on one node: gathers its ranks, starts an epoch
// together with the coordinator, runs and ends it, then gathers again. Each
// event appends actions; ExecutorLogic takes them and executes them in order.
//
//   ExecutorCore core(options);
//   core.OnTime(now_ms);
//   core.OnClient(1, hello, pid);
//   for (Action& a : core.TakeActions()) ...
//
//   phase        waits for                               next phase
//   kIdle        all local ranks (in gathering_)         kReady
//   kReady       EpochStart                              kPreparing, kCreating
//   kPreparing   the backend's addresses, all Endpoints  kConnecting
//   kConnecting  the backend                             kCreating
//   kCreating    the board                               kRunning
//   kRunning     all local ranks to leave                kIdle
//   kEnded       (aborted) all local ranks to leave      kIdle
//
// Elastic ranks are reported to the coordinator as they arrive, in any phase;
// EpochStart names those that take part, and leads from kIdle straight to
// kPreparing or kCreating.
//
// Ranks that arrive during an epoch gather for the next one. When all local
// ranks have left cleanly, the epoch drains: the core keeps board and backend
// until all ranks of the job have left, because other nodes may still be
// receiving what our backend has sent.
//
// Thread contract: not synchronized; no I/O, threads or clock.
//
// Invariants: a client is in members_, in gathering_ or unknown here; the board
// is aborted at most once per epoch; every client that is not welcomed gets a
// Refused with a reason.
#ifndef MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_
#define MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/coordinator_link.h"
#include "worker/core/executor_core_options.h"
#include "worker/core/executor_epoch.h"
#include "worker/core/last_epoch.h"
#include "worker/core/limits.h"
#include "worker/core/local_gathering.h"
#include "worker/core/membership.h"
#include "worker/core/returning_processes.h"
#include "worker/core/stats_watch.h"

namespace maypole::worker {

class ExecutorCore {
 public:
  explicit ExecutorCore(ExecutorCoreOptions options)
      : options_(std::move(options)),
        link_(options_.coordinator_timeout_ms, &actions_),
        gathering_(options_, &link_, &actions_),
        returning_(&actions_) {}
  ExecutorCore(const ExecutorCore&) = delete;
  ExecutorCore& operator=(const ExecutorCore&) = delete;

  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }

  // Sets the time of the events that follow; call it before them.
  void OnTime(int64_t now_ms);

  // --- Clients -------------------------------------------------------------
  void OnClient(ClientId client, const session::Hello& hello, int visible_pid);
  void OnSlotRequest(ClientId client, const session::SlotRequest& request);
  void OnSlotReturn(ClientId client, const session::SlotReturn& answer);
  void OnSetRequest(ClientId client, const session::SetRequest& request);
  void OnJoinRequest(ClientId client, const session::JoinRequest& request);
  void OnGpuMemoryRequest(ClientId client,
                          const session::GpuMemoryRequest& request);
  void OnResultRecords(ClientId client, const session::ResultRecords& records);
  void OnFinished(ClientId client, bool finished) {
    members_.SetFinished(client, finished);
  }
  // Call it before OnGoodbye() if an error makes the rank leave.
  void OnLeaveReason(ClientId client, const std::string& why) {
    members_.SetLeaveReason(client, why);
  }
  void OnGoodbye(ClientId client, uint32_t pending, bool returns = false);
  // The client has gone without Goodbye; `how` completes "rank 3 died: ".
  void OnClientGone(ClientId client, const std::string& how);
  // The process of a client with KeepWatching has ended.
  void OnProcessEnded(ClientId client);

  // --- Board and backend ---------------------------------------------------
  // There is no memory for another slot: the epoch ends.
  void OnBoardFull(const absl::Status& status);
  void OnReadySlot(const ReadySlot& ready);
  // The results of FindIdleSlots and FreeSlot (see NameSlots).
  void OnIdleSlots(const std::vector<IdleSlot>& idle);
  void OnSlotFreed(uint32_t slot, uint32_t first);
  // True while a name waits for a slot: call OnTime() often.
  bool waits_for_slots() const {
    return phase_ == Phase::kRunning && epoch_->names().waits();
  }
  bool waits_to_send_results() const {
    return phase_ == Phase::kRunning && epoch_->results().waits();
  }
  void OnRunFree(uint32_t record);
  // True while a run waits until ranks have left earlier runs.
  bool waits_for_records() const {
    return phase_ == Phase::kRunning && epoch_->waits_for_records();
  }
  // The results of OpenGpuMemory, MakeCommunicatorId and RunOnGpus.
  void OnGpuMemoryOpened(GpuMemoryId id,
                         const absl::StatusOr<OpenedGpuMemory>& opened);
  void OnCommunicatorIdMade(uint32_t number,
                            const absl::StatusOr<std::string>& id);
  void OnGpuRunEnded(const GpuRun& run, const absl::Status& status);
  // Call it every kBoardScanMs, every kBlockedScanMs while all ranks say that
  // they are blocked, and whenever wants_snapshot() is true.
  void OnSnapshot(const BoardSnapshot& snapshot);
  bool wants_snapshot() const {
    return phase_ == Phase::kRunning && epoch_->watch().wants_snapshot();
  }
  // A mask of the local ranks whose processes the next snapshot should check
  // for being stopped.
  uint64_t suspects() const {
    return phase_ == Phase::kRunning ? epoch_->watch().suspects() : 0;
  }
  // Returns true if the clients must be welcomed. Returns false if they have
  // been or will be refused: the board or, meanwhile, the start has failed.
  bool OnBoardCreated(const absl::Status& status);
  void OnBackendPrepared(
      const absl::StatusOr<std::vector<std::string>>& addresses);
  void OnBackendConnected(const absl::Status& status);
  // Ends the epoch later, unless the coordinator sends the real cause first or
  // no rank on another node is left. Returns false if the failure does not
  // matter: no epoch is running, or one has failed before.
  bool OnNetworkFailed(const absl::Status& status);
  // A message of another node's executor, for the epoch of the backend.
  void OnPeerMessage(uint32_t node, const proto::PeerMessage& message);
  // The frozen tier needs OnTime() within this many milliseconds; -1: never.
  int64_t WaitMs() const {
    return phase_ == Phase::kRunning ? epoch_->schedule().WaitMs() : -1;
  }

  // --- Coordinator ---------------------------------------------------------
  void OnCoordinator(const proto::CoordinatorMessage& message);
  void OnPresenceAcknowledged();
  // The link is permanently lost, or was refused.
  void OnLinkLost(const absl::Status& status);
  // The coordinator cannot be reached; can be reached again; has been replaced
  // by one that knows nothing. Ranks that wait too long for the coordinator get
  // `status`.
  void OnCoordinatorAway(const absl::Status& status);
  void OnCoordinatorBack();
  void OnCoordinatorReplaced();

  // Sets whether the executor keeps states for the ranks: if it does, it waits
  // longer for ranks to return before it asks to end.
  void OnStatesKept(bool any) { keeps_states_ = any; }

  // The executor has been asked to end (SIGTERM).
  void OnStop(const std::string& text);
  // The agent has ended: no other client can come to this executor.
  void OnSupervisorGone();

  // The nodes of the epoch that starts or runs, by index.
  std::vector<std::string> NodeNames() const;

  // Clients that are connected or expected to return, and processes that live
  // on after their training.
  size_t clients() const {
    return members_.members().size() + gathering_.ranks().members().size() +
           returning_.size();
  }
  // True while the coordinator may not know yet how the last epoch has ended
  // here, because it has replaced another or cannot be reached. The executor
  // must not end then; it stays for up to coordinator_timeout_ms.
  bool owes_report() const {
    return link_.recovering() || (link_.away() && last_epoch_.epoch() != 0);
  }
  // True for kIdleMs after the training is over. This node may be the last that
  // knows it, so the executor must not end: a process that connects now would
  // begin the training again.
  bool keeps_job_known() const {
    return last_epoch_.finished() && now_ms_ - idle_since_ms_ < kIdleMs;
  }
  // True if all ranks of this node have left the epoch while other nodes may
  // still receive its results.
  bool drains() const {
    return epoch_ && (phase_ == Phase::kIdle || phase_ == Phase::kReady);
  }

 private:
  enum class Phase {
    kIdle,
    kReady,
    kPreparing,
    kConnecting,
    kCreating,
    kRunning,
    kEnded
  };

  bool starting() const {
    return phase_ != Phase::kIdle && phase_ != Phase::kRunning &&
           phase_ != Phase::kEnded;
  }
  // Returns the number of the epoch that starts, runs or ends; 0 before
  // EpochStart, when epoch_ may still be the previous, draining epoch.
  uint64_t epoch_number() const {
    return epoch_ && phase_ != Phase::kReady ? epoch_->info().epoch : 0;
  }
  std::string RankText(const LocalMember& m) const;
  // Returns the client's member in the running epoch, or null.
  const LocalMember* RunningMember(ClientId client) const;
  // Calls absl::Status event(ExecutorEpoch&) if an epoch runs; an error ends
  // it.
  template <typename Event>
  void InEpoch(const Event& event) {
    if (phase_ != Phase::kRunning) return;
    if (absl::Status s = event(*epoch_); !s.ok()) FailEpochHere(s);
  }
  // As InEpoch(), for an event of a client in it: event(epoch, member).
  template <typename Event>
  void InEpochOf(ClientId client, const Event& event) {
    const LocalMember* const m = RunningMember(client);
    if (m == nullptr) return;
    InEpoch([&](ExecutorEpoch& epoch) { return event(epoch, *m); });
  }
  // Answers a request of a client for which no epoch runs with an error.
  template <typename Reply>
  void ReplyNoEpoch(ClientId client, Reply reply);

  // --- Starts ----------------------------------------------------------------
  // Elastic: whether the client may wait beside the running epoch.
  absl::Status CheckElastic(const session::Hello& hello) const;
  // Reports the ranks as ready if all local ranks are there; otherwise reports
  // which of them are waiting.
  void BeginIfComplete();
  void LeaveGathering(ClientId client);
  // Only in kIdle: ranks that wait for the end of an epoch were not reported,
  // and an empty list would end that epoch.
  void WithdrawWaiting() {
    if (phase_ == Phase::kIdle) gathering_.Withdraw();
  }
  void OnEpochStart(const proto::EpochStart& start);
  // Elastic: moves the ranks that `start` names from gathering_ to members_.
  // Returns false if the epoch cannot start on this node.
  bool TakeIn(const proto::EpochStart& start);
  // Elastic: tells the coordinator that these ranks are missing.
  void RefuseStart(const proto::EpochStart& start,
                   const std::vector<uint32_t>& missing);
  void OnEndpoints(uint64_t epoch, const proto::Endpoints& endpoints);
  void MakeBoard();
  // The start has failed: refuses all members and forgets the epoch.
  void FailStart(const absl::Status& why);
  // Elastic: a start has failed, but not because of its members, who wait
  // again.
  void WaitAgain(const absl::Status& why);
  // The backend has failed to start: elastic members wait again, up to
  // kMaxFailedStarts times in a row.
  void StartFailedHere(const absl::Status& status);

  // --- Messages of the coordinator -------------------------------------------
  void OnEpochEnd(uint64_t epoch, const proto::EpochEnd& end);
  void OnRankLeftElsewhere(uint64_t epoch, const proto::RankLeft& left);
  // A message for the running epoch.
  absl::Status OnEpochMessage(const proto::CoordinatorMessage& message);
  void OnNotice(const proto::Notice& notice);
  void OnMembershipWanted(const proto::CoordinatorMessage& message);
  // If the message belongs to the epoch that is starting, keeps it until the
  // epoch runs and returns true.
  bool KeptForLater(const proto::CoordinatorMessage& message);
  void OnRecovered(uint64_t epoch, const proto::Recovered& recovered);
  void FillState(proto::NodeState* state) const;
  bool WaitsForCoordinator() const;

  // --- Ends ------------------------------------------------------------------
  void ForgetEpoch();
  // The epoch has failed: aborts the board, upon which the members leave.
  void FailEpoch(const absl::Status& why);
  // As FailEpoch, and reports the failure to the coordinator.
  void FailEpochHere(const absl::Status& why);
  // Another node is lost. Waits for the coordinator to send the cause; if it
  // does not in time, `failure` is the reason.
  void AwaitCause(absl::Status failure);
  void GiveUpNetwork();
  // `how` completes "rank 3 was lost: "; `what` completes "rank 3 ".
  void MemberGone(const LocalMember& member, bool clean,
                  const std::string& what, const std::string& how,
                  bool returns = false);
  void AfterMemberGone();
  // Removes a frozen member and fails the epoch.
  void Expel(const BoardWatch::Frozen& frozen);
  void SendRankGone(const LocalMember& member, bool clean,
                    const std::string& how, bool returns = false);
  void SendGone(proto::ExecutorMessage message);
  void SendFailed(uint64_t epoch, const absl::Status& status);

  const ExecutorCoreOptions options_;
  std::vector<Action> actions_;
  CoordinatorLink link_;
  LocalGathering gathering_;      // for the next epoch
  ReturningProcesses returning_;  // elastic
  LastEpoch last_epoch_;
  StatsWatch stats_watch_;
  int64_t now_ms_ = 0;
  Phase phase_ = Phase::kIdle;
  Membership members_;                  // of the epoch that starts or runs
  std::optional<ExecutorEpoch> epoch_;  // also while draining
  uint32_t nccl_version_ = 0;           // of all nodes of epoch_; 0: none
  // Messages for epoch_ that arrived before its board existed; their number is
  // bounded by the job's ranks and names.
  std::vector<proto::CoordinatorMessage> early_;
  int failed_starts_ = 0;
  absl::Status abort_;  // in kEnded: why epoch_ was aborted
  // Set when the backend or a GPU run has failed: until this time the executor
  // waits for the coordinator to send the real cause.
  std::optional<int64_t> give_up_ms_;
  absl::Status network_failure_;
  bool keeps_states_ = false;
  int64_t idle_since_ms_ = 0;
  int64_t idle_told_ms_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_
