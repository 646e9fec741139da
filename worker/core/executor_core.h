// ExecutorCore: the executor's brain, a pure state machine.
//
// Purpose: one job on one node: gathers its ranks, starts an epoch together
// with the coordinator, runs it, ends it, gathers again. Every event appends to
// the actions that follow from it; the shell takes and does them in order.
//
//   ExecutorCore core(options);
//   core.OnTime(now_ms);
//   core.OnClient(1, hello, pid);
//   for (Action& a : core.TakeActions()) ...
//
//   phase       what it waits for                       next
//   kIdle       all local ranks (in gathering_)         kReady
//   kReady      EpochStart                              kPreparing or kCreating
//   kPreparing  the backend's addresses, all Endpoints  kConnecting
//   kConnecting the backend                             kCreating
//   kCreating   the board                               kRunning
//   kRunning    ranks to leave                          kIdle
//   kEnded      (aborted) all local ranks to go         kIdle
//
// Elastic ranks are told of as they come, in any phase; EpochStart says who of
// them is in: from kIdle straight to kPreparing or kCreating.
//
// Ranks that come while an epoch is there gather for the next one. When all
// local ranks have left cleanly the board is no longer needed, but other nodes
// may still receive what our backend has sent: it stays until all ranks of the
// job have left (draining).
//
// Thread contract: not synchronized; no I/O, threads or clock.
//
// Invariants: every client is in members_ or in gathering_ or unknown here; the
// board is aborted at most once per epoch; every client that is not welcomed
// gets a Refused with a reason.
#ifndef MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_
#define MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/membership.h"
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {

struct ExecutorCoreOptions {
  std::string job;
  std::string node;
  std::string host;
  uint32_t slots = kMaxSlots;
  uint32_t records = kMaxRuns;
  uint32_t chunk_bytes = 512 * 1024;
  uint32_t ring_depth = 8;
  uint64_t arena_bytes = 0;
  int64_t start_timeout_ms = 120000;
  int64_t resume_timeout_ms = 3000;
  // A rank that stands still in an operation that long is lost; 0: never.
  int64_t frozen_timeout_ms = 10000;
};

class ExecutorCore {
 public:
  explicit ExecutorCore(ExecutorCoreOptions options)
      : options_(std::move(options)) {}

  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }

  // Time goes first: it is the time of the events that follow.
  void OnTime(int64_t now_ms);

  // --- Clients -------------------------------------------------------------
  void OnClient(ClientId client, const session::Hello& hello, int visible_pid);
  void OnSlotRequest(ClientId client, const session::SlotRequest& request);
  void OnSlotReturn(ClientId client, const session::SlotReturn& answer);
  void OnSetRequest(ClientId client, const session::SetRequest& request);
  void OnJoinRequest(ClientId client, const session::JoinRequest& request);
  void OnGoodbye(ClientId client, uint32_t pending, bool returns = false);
  // Gone without Goodbye; `how` completes "rank 3 died: ".
  void OnClientGone(ClientId client, const std::string& how);
  // Of one that is kept watch on.
  void OnProcessEnded(ClientId client);

  // --- Board and backend ---------------------------------------------------
  // No memory for another slot: the epoch ends.
  void OnBoardFull(const absl::Status& status);
  void OnReadySlot(const ReadySlot& news);
  // Answers of FindIdleSlots and FreeSlot (ExecutorEpoch).
  void OnIdleSlots(const std::vector<IdleSlot>& idle);
  void OnSlotFreed(uint32_t slot, uint32_t first);
  // Time counts: some name waits for a slot.
  bool waits_for_slots() const {
    return phase_ == Phase::kRunning && epoch_->waits_for_slots();
  }
  void OnRunFree(uint32_t record);
  // Every kBoardScanMs; and every kBlockedScanMs while all ranks say that they
  // are blocked; and when it is wanted.
  void OnSnapshot(const BoardSnapshot& look);
  bool wants_snapshot() const {
    return phase_ == Phase::kRunning && epoch_->wants_snapshot();
  }
  // Local ranks of whom a look should say whether they are stopped; as a mask.
  uint64_t suspects() const {
    return phase_ == Phase::kRunning ? epoch_->suspects() : 0;
  }
  // True: welcome the clients. False: they have been, or will be, refused (the
  // start may have failed while the board was made).
  bool OnBoardCreated(const absl::Status& status);
  void OnBackendPrepared(
      const absl::StatusOr<std::vector<std::string>>& addresses);
  void OnBackendConnected(const absl::Status& status);
  void OnNetworkFailed(const absl::Status& status);

  // --- Coordinator ---------------------------------------------------------
  void OnCoordinator(const proto::CoordinatorMessage& message);
  void OnPresenceAcknowledged();
  // The link is lost for good, or was refused.
  void OnLinkLost(const absl::Status& status);

  // The executor is told to end.
  void OnStop(const std::string& text);

  // Connected, or about to come back.
  size_t clients() const {
    return members_.members().size() + gathering_.members().size() +
           returning_.size();
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
  // Of the epoch that starts, runs or ends; 0 before EpochStart, when epoch_
  // may still be the one before, draining.
  uint64_t epoch_number() const {
    return epoch_ && phase_ != Phase::kReady ? epoch_->info().epoch : 0;
  }
  // Of gRPC's number, as somebody else says it.
  static Code CodeOf(int code);
  // The reason that an EpochEnd gives, never empty: it goes to ranks.
  static std::string TextOf(const proto::EpochEnd& end);
  std::string RankText(const LocalMember& m) const;
  // Of the running epoch; null: no epoch runs for it.
  const LocalMember* RunningMember(ClientId client) const;
  // Why a member's request has no answer but this.
  template <typename Reply>
  void ReplyNoEpoch(ClientId client, Reply reply);

  // All local ranks are there, or the coordinator is told which.
  void BeginIfComplete();
  void SendWaiting(const Membership& waiting);
  // What the ranks and this node say beside who they are.
  void AddFacts(const Membership& membership, proto::RanksReady* ready);
  void OnEpochStart(const proto::EpochStart& start);
  void OnEndpoints(const proto::Endpoints& endpoints);
  void OnEpochEnd(const proto::EpochEnd& end);
  void OnRankLeftElsewhere(const proto::RankLeft& left);
  // A message for the running epoch.
  absl::Status OnEpochMessage(const proto::CoordinatorMessage& message);
  void OnNotice(const proto::Notice& notice);
  // True: the message is of the epoch that starts, and kept until it runs.
  bool KeptForLater(const proto::CoordinatorMessage& message);
  void MakeBoard();
  // The start has failed: refuses all members, forgets the epoch.
  void FailStart(Code code, const std::string& text);
  void ForgetEpoch();
  // The epoch has failed: aborts the board; members leave by themselves.
  void FailEpoch(Code code, const std::string& text);
  // As FailEpoch, and the coordinator does not know it yet.
  void FailEpochHere(const absl::Status& status);
  // `how` completes "rank 3 was lost: "; `what` is "died" or what it did.
  void MemberGone(const LocalMember& member, bool clean,
                  const std::string& what, const std::string& how,
                  bool returns = false);
  void AfterMemberGone();
  // The epoch is over for a member that does not move.
  void Expel(const ExecutorEpoch::Frozen& frozen);
  void LeaveGathering(ClientId client);
  void Send(proto::ExecutorMessage message);
  void SendRankGone(int rank, bool clean, const std::string& how,
                    bool returns = false);
  void SendFailed(uint64_t epoch, const absl::Status& status);
  void Refuse(Membership* membership, Code code, const std::string& text);

  // --- Elastic jobs (executor_core_elastic.cc)
  // ----------------------------------------
  absl::Status AdmitElastic(ClientId client, const session::Hello& hello,
                            int visible_pid);
  // Tells the coordinator who waits here.
  void SayWaiting();
  // Who of those that wait is in the epoch. False: it cannot start here.
  bool TakeIn(const proto::EpochStart& start);
  void RefuseWaiting(const proto::EpochEnd& end);
  // A start has failed by somebody else's fault: its members wait again.
  void WaitAgain();
  // By the backend: so they do, but not for ever.
  void StartFailedHere(const absl::Status& status);
  // The process of a member that leaves means to come back.
  void KeepWatch(const LocalMember& member);
  // Of those that `over` is true for.
  template <typename Over>
  void EndWatches(Over over) {
    std::erase_if(returning_, [&](const auto& r) {
      if (!over(r.second)) return false;
      actions_.push_back(StopWatching{r.first});
      return true;
    });
  }
  void OnMembershipWanted(const proto::CoordinatorMessage& message);

  const ExecutorCoreOptions options_;
  std::vector<Action> actions_;
  int64_t now_ms_ = 0;
  Phase phase_ = Phase::kIdle;
  Membership members_;    // of the epoch that starts or runs
  Membership gathering_;  // for the next one
  int64_t gathering_since_ms_ = 0;
  struct Returning {
    uint64_t epoch = 0;
    int rank = 0;
    int visible_pid = 0;
    int64_t until_ms = 0;
  };
  std::map<ClientId, Returning> returning_;  // elastic; bounded by processes
  uint64_t round_ = 0;            // see proto RanksReady; of the session
  bool told_of_elastic_ = false;  // likewise of the session
  int failed_starts_ = 0;
  std::optional<ExecutorEpoch> epoch_;  // also while draining
  bool link_open_ = false;
  // Why epoch_ was aborted, in kEnded.
  Code abort_code_ = Code::kAborted;
  std::string abort_text_;
  // What came for epoch_ before its board was there; bounded by the job's
  // ranks and names.
  std::vector<proto::CoordinatorMessage> early_;
  // Set while the backend has failed and the coordinator may know better why.
  std::optional<int64_t> give_up_ms_;
  absl::Status network_failure_;
  int64_t idle_since_ms_ = 0;
  int64_t idle_told_ms_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EXECUTOR_CORE_H_
