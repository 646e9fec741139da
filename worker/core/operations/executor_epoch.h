// ExecutorEpoch: a running epoch on this node, from Welcome to its end.
//
// Purpose: combines process sets, slots, presence and runs: reports what ranks
// have submitted to the coordinator, and writes the runs that the coordinator
// orders to the board. Operations within one node (a job on one node, or a
// process set within it) need neither; for them this only handles slots and
// departures.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: if an event returns an error, the epoch cannot continue; the core
// aborts it with that text.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_EXECUTOR_EPOCH_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_EXECUTOR_EPOCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/limits.h"
#include "worker/core/liveness/blocked.h"
#include "worker/core/liveness/board_snapshot.h"
#include "worker/core/liveness/frozen.h"
#include "worker/core/liveness/local_stragglers.h"
#include "worker/core/membership.h"
#include "worker/core/operations/local_results.h"
#include "worker/core/operations/member_requests.h"
#include "worker/core/operations/presence.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/recalls.h"
#include "worker/core/operations/requests.h"
#include "worker/core/operations/runs.h"
#include "worker/core/operations/schedule.h"
#include "worker/core/operations/sets.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

struct EpochInfo {
  uint64_t epoch = 0;
  int size = 1;
  uint32_t node_index = 0;
  std::vector<proto::NodeInfo> nodes;
  int64_t stall_check_ms = 0;    // 0: stragglers are not reported
  uint32_t checksums = 0;        // ChecksumMode
  uint32_t chunk_bytes = 0;
  bool sends_inputs = false;  // see PresentOperation.inputs_sent

  bool several_nodes() const { return nodes.size() > 1; }
  std::string NodeText(uint32_t node) const;  // "node n1 (host b)"
  // A node with the smallest of the versions that the sessions have.
  uint32_t OldestNode() const;
};

// The nodes speak the smallest of their versions with one another. An error
// names the node whose version is not in `own`, this node's range.
absl::Status CheckVersions(const EpochInfo& info, VersionRange own);

// Checks the coordinator's EpochStart against the ranks of this node.
absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks);

class ExecutorEpoch : private WaitJudge {
 public:
  ExecutorEpoch(EpochInfo info, uint32_t slots, uint32_t records,
                int64_t frozen_timeout_ms, std::vector<Action>* actions);

  const EpochInfo& info() const { return info_; }

  absl::Status OnReadySlot(const ReadySlot& ready);
  void OnPresenceAcknowledged();
  absl::Status OnExecute(const proto::Execute& execute);
  absl::Status OnOperationFailed(const proto::OperationFailed& failed);
  void OnRunFree(uint32_t record);
  bool waits_for_records() const { return runs_.waits(); }

  // --- The frozen tier (executor_epoch_schedule.cc) --------------------------
  absl::Status OnSchedule(const proto::Schedule& message);
  absl::Status OnPeerMessage(uint32_t node, const proto::PeerMessage& message);
  // For how many milliseconds OnTime() need not be called; -1: any time.
  int64_t WaitMs() const { return schedule_.WaitMs(); }

  // --- Names and slots (executor_epoch_names.cc) -----------------------------
  // Answers at once, or when a slot becomes free, or with an error after
  // kSlotWaitMs in which none has become free.
  void OnSlotRequest(const LocalMember& member,
                     const session::SlotRequest& request);
  // The result of FindIdleSlots: slots whose local members are all at the same
  // generation.
  void OnIdleSlots(const std::vector<IdleSlot>& idle);
  absl::Status OnSlotReturn(const LocalMember& member,
                            const session::SlotReturn& answer);
  // The result of FreeSlot: no word of the slot has a generation beyond
  // `first`.
  absl::Status OnSlotFreed(uint32_t slot, uint32_t first);
  absl::Status OnNamesRetired(const proto::NamesRetired& retired);
  absl::Status OnTime(int64_t now_ms);
  // True if a rank or the coordinator waits for a slot.
  bool waits_for_slots() const {
    return !waiting_.empty() || !waiting_stand_ins_.empty();
  }
  // The epoch is over: answers the slot requests of `members` that wait with
  // this error.
  void RefuseWaiting(Code code, const std::string& text,
                     const Membership& members);

  // --- GPUs (executor_epoch_gpus.cc) -----------------------------------------
  absl::Status OnGpuMemoryRequest(const LocalMember& member,
                                  const session::GpuMemoryRequest& request);
  void OnGpuMemoryOpened(GpuMemoryId id,
                         const absl::StatusOr<OpenedGpuMemory>& opened);
  // All nodes have this NCCL: operations may run on several GPUs. nccl_host: as
  // in proto::RankGpu.
  void EnableCommunicators(uint32_t nccl_version, uint64_t nccl_host) {
    communicators_enabled_ = true;
    nccl_version_ = nccl_version;
    nccl_host_ = nccl_host;
  }
  absl::Status OnCommunicator(const proto::Communicator& message);
  absl::Status OnCommunicatorIdMade(uint32_t number,
                                    const absl::StatusOr<std::string>& id);
  absl::Status OnCommunicatorId(const proto::CommunicatorId& message);
  absl::Status OnGpuRunEnded(const GpuRun& run, const absl::Status& status);

  // --- Requests to all ranks of the job (executor_epoch_requests.cc) ---------
  absl::Status OnSetRequest(const LocalMember& member,
                            const session::SetRequest& request);
  absl::Status OnSetReply(const proto::SetReply& reply);
  absl::Status OnJoinRequest(const LocalMember& member,
                             const session::JoinRequest& request);
  void OnJoinReply(const proto::JoinReply& reply);
  absl::Status OnStandIn(const proto::StandIn& stand_in);

  // `local_rank` is -1 for a rank of another node. If called twice for a rank,
  // the first text counts.
  absl::Status OnRankLeft(int rank, int local_rank, const std::string& text);
  // "rank 2 (node n1) has shut down; operations that need it cannot run"
  std::string LeftText(int rank) const;

  // --- Checksums of results (executor_epoch_results.cc) ----------------------
  absl::Status OnResultRecords(const LocalMember& member,
                               const session::ResultRecords& message);
  // The rank has left cleanly, and has sent all its records.
  void OnNoMoreResults(uint32_t local);
  // True if something waits to be sent: call OnTime() after kResultsPauseMs.
  bool waits_to_send_results() const { return !results_.empty(); }

  // --- A coordinator that replaces another (executor_epoch_recovery.cc) ------
  // Sends nothing until OnRecovered().
  void OnCoordinatorReplaced();
  // What a coordinator that knows nothing must know of this epoch.
  void FillState(proto::NodeState* state) const;
  // The coordinator knows the epoch again: reports what is open.
  absl::Status OnRecovered(const proto::Recovered& recovered);
  // The coordinator is not there: names that wait for it wait longer.
  void OnCoordinatorMissing(int64_t now_ms) { freed_ms_ = now_ms; }
  // A rank waits for something that only the coordinator can give.
  bool WaitsForCoordinator() const;

  // --- Liveness (executor_epoch_watch.cc) ------------------------------------
  struct Frozen {
    uint32_t local = 0;
    std::string what;  // "has not moved for 10 s while ..."
  };
  // Returns a rank that counts as lost from now on, if there is one.
  std::optional<Frozen> OnSnapshot(int64_t now_ms,
                                   const BoardSnapshot& snapshot);
  // A mask of the local ranks whose processes the next snapshot should check
  // for being stopped.
  uint64_t suspects() const {
    return local_stragglers_.suspects() | frozen_.suspects();
  }
  // Counts a handled message of this epoch, EpochStart and Endpoints included;
  // see proto Blocked.
  void CountHandled() { ++handled_; }
  // The next snapshot answers the request.
  void OnConfirmBlocked(uint64_t round) { confirm_round_ = round; }
  // True if a snapshot is wanted now.
  bool wants_snapshot() const { return confirm_round_ != 0; }

  // Returns which of these local ranks (a mask, not empty) gets a notice: if
  // possible one that waits and that no local rank waits for, because such a
  // rank prints the text at once.
  uint32_t RankToTell(uint64_t locals) const;
  // " (after rank 0 (node n0) had shut down)" if a rank has left, since later
  // failures may be a consequence; otherwise empty.
  std::string AfterText() const;

  // As of the last snapshot, a rank of this node was in a run with other nodes;
  // or one waits until earlier ones have ended, or for inputs of other nodes;
  // or a run of its GPUs has failed; or a schedule cannot end without a word of
  // the other nodes.
  bool InRun() const {
    return in_run_ || runs_.waits() || !small_runs_.empty() || gpus_lost_ ||
           schedule_.active();
  }
  bool HasLeft(int rank) const { return left_.contains(rank); }
  // How many ranks have not left.
  size_t LiveRanks() const {
    return static_cast<size_t>(info_.size) - left_.size();
  }
  bool AllHaveLeft() const { return LiveRanks() == 0; }

 private:
  absl::StatusOr<uint32_t> Allot(SharedSet set, Kind kind,
                                 const std::string& name);
  absl::StatusOr<uint32_t> AllotFor(const LocalMember& member,
                                    const session::SlotRequest& request,
                                    bool* negotiated);
  void Reply(const LocalMember& member, const session::SlotRequest& request,
             const absl::StatusOr<uint32_t>& slot, bool negotiated);
  // Returns false, without an answer, if there is no slot and `may_wait`.
  bool Answer(const LocalMember& member, const session::SlotRequest& request,
              bool may_wait);
  void RecallSlots();
  bool MayRecall(uint32_t slot) const;
  void ReleaseSlots(const std::vector<uint32_t>& slots);
  absl::Status ServeWaiting();
  // Sends the rank that waits for a slot a notice that names the rank which
  // does not give slots back.
  void TellOfSilence();
  void ForgetSlotsOf(uint32_t local);
  // Returns the slot of an operation in a coordinator's message; allots one if
  // no rank of this node has used the name. Returns null if the process set is
  // gone, RESOURCE_EXHAUSTED if the table is full, and another error if the
  // operation is unknown.
  absl::StatusOr<SlotEntry*> ResolveOrAllot(uint32_t id,
                                            const proto::Identity* identity,
                                            uint32_t* slot);
  // A rank has submitted a name again before its last operation had ended.
  absl::Status SubmittedTooEarly(const ReadySlot& ready,
                                 const SlotEntry& entry) const;
  absl::Status OnReadyOnGpu(const ReadySlot& ready, SlotEntry* entry);
  // Sets where the local members' tensors are, and the room for their results.
  absl::Status TakeGpuTensors(const ReadySlot& ready, SlotEntry* entry) const;
  // The communicator of this node's GPUs; 0 if it is one GPU; none if there are
  // too many.
  std::optional<uint32_t> LocalCommunicator(const std::vector<uint32_t>& gpus);
  absl::Status RunOnLocalGpus(uint32_t slot, const SlotEntry& entry,
                              const std::vector<int64_t>& rows);
  absl::Status RunOnGpus(const proto::Run& run);
  std::optional<uint32_t> NextLocalCommunicator() const;

  // --- Ranks that call NCCL themselves (executor_epoch_rank_gpus.cc) ---------
  // The number of a rank's own GPU, if its ranks may use it.
  absl::StatusOr<OpenedGpuMemory> OwnGpu(
      const LocalMember& member, const session::GpuMemoryRequest& request);
  // Some of the tensors are on GPUs of ranks that call NCCL themselves.
  bool AnyIsOwn(const std::vector<GpuTensor>& tensors) const;
  // All are, and on different GPUs.
  bool RanksCanRun(const std::vector<GpuTensor>& tensors) const;
  absl::Status RunOnRanks(uint32_t slot, const SlotEntry& entry);
  absl::Status RunOnRanks(const proto::Run& run);
  std::optional<uint32_t> LocalRankCommunicator(
      const SharedSet& set, const std::vector<uint32_t>& gpus);
  absl::Status OnRankCommunicator(const proto::Communicator& message);
  // False if the communicator is not one of ranks.
  bool ConnectRanks(uint32_t number, const std::string& id);
  void Begin(GpuRun run);
  // Returns a member that has left; -1 if there is none.
  int FirstLeftOf(const NodeSet& set) const;
  // Of each operation of a run: its ranks will send records.
  absl::Status ExpectResults(const proto::Run& run);
  // Sends what is decided here; all of it, or if it is time.
  void SendResults(bool all);
  void FailForDeparture(uint32_t slot, uint32_t generation, int rank,
                        absl::string_view detail = "");
  struct GpuMemory {
    ClientId client = 0;
    int rank = 0;
    uint64_t bytes = 0;
    std::string uuid;  // of its GPU, 16 bytes
    bool open = false;
    uint32_t gpu = 0;
    bool own = false;  // GpuSharing::kOwn
  };
  void ReportGpu(uint32_t local, const GpuMemory& memory);
  // "; shared there: 64 MiB of rank 0, 128 MiB of rank 1"; or empty.
  std::string SharesText(const std::string& uuid) const;
  void ForgetGpuMemories(uint32_t local);
  void Send(proto::ExecutorMessage message);
  void ForgetIds();
  void ReportPending();
  void ReportRequests();
  void ReportGpus();
  void SendJoinState(uint32_t rank, uint32_t number, bool settled);
  // A rank has begun to wait for an operation that was reported before.
  void OnUrgent(const ReadySlot& ready, SlotEntry* entry);
  void SendPresence();
  // The scheduled runs of this node.
  absl::StatusOr<std::vector<ScheduledRun>> ReadSchedule(
      const proto::Schedule& message);
  // Present here, over several nodes, and not answered.
  bool IsPending(const SlotEntry& entry) const;
  // An operation is present while a schedule is executed.
  absl::Status AddToSchedule(uint32_t slot, const SlotEntry& entry);
  // If a schedule is executed, ends it.
  absl::Status LeaveSchedule(proto::ScheduleEnd why, const std::string& text);
  // Does what the schedule wants now.
  absl::Status FollowSchedule();
  void EndSchedule();
  absl::Status ExecuteScheduled(const std::vector<uint32_t>& slots);

  // --- Small runs (executor_epoch_inputs.cc) ---------------------------------
  // Whether a run of these operations over so many nodes is a small one.
  static bool AreSmall(const std::vector<const Signature*>& operations,
                       size_t nodes);
  SmallOperation SmallOperationOf(uint32_t slot) const;
  void WantCopiesOf(uint32_t slot, bool wanted);
  // Finishes a run of which all inputs are here.
  absl::Status Finish(Schedule::Execution run);
  // The negotiated tier:
  // What to send of an operation that is reported now; none unless it is to be
  // expected that its run is small.
  std::optional<SendToPeers> InputsOf(uint32_t slot,
                                      const SlotEntry& entry) const;
  absl::Status OnInputs(uint32_t node, const proto::PeerMessage& message);
  // The coordinator has ordered a run whose inputs all nodes have sent.
  absl::Status BeginSmall(const proto::Run& run);
  absl::Status FinishSmallRuns();
  // After a run: whether the next one of its operations may be small.
  void LearnFrom(const proto::Run& run);
  // A mask of the local ranks that are known to wait for others.
  uint64_t Waiting() const;
  bool WaitsInJoin(uint32_t local) const override;
  bool WaitsForSet(uint32_t local) const override;
  bool WaitsForOthers(uint32_t slot, uint32_t generation) const override;
  bool IsSlot(uint32_t slot) const override {
    return slots_.Get(slot) != nullptr;
  }
  void CheckForStragglers(int64_t now_ms, const BoardSnapshot& snapshot);
  void CheckForBlocked(const BoardSnapshot& snapshot);
  proto::Blocked BlockedMessage(bool blocked) const;
  void SetIdentity(const SlotEntry& entry, proto::Identity* out) const;
  // Adds the global ranks of a mask of local ranks.
  template <typename Field>
  void AddRanks(uint64_t locals, Field* out) const;
  void IssueRuns();

  const EpochInfo info_;
  std::vector<Action>* const actions_;
  SetTable sets_;
  SlotTable slots_;
  SlotRecalls recalls_;
  int64_t now_ms_ = 0;
  std::map<uint32_t, ClientId>
      clients_;  // by local rank; ranks that have asked
  struct WaitingRequest {
    LocalMember member;
    session::SlotRequest request;
  };
  std::deque<WaitingRequest> waiting_;  // for slots
  std::deque<proto::StandIn> waiting_stand_ins_;
  size_t freeing_ = 0;     // slots for which OnSlotFreed is outstanding
  int64_t freed_ms_ = 0;   // last slot freed, or first request began to wait
  int64_t recall_ms_ = 0;  // no recall before this time
  int64_t recall_pause_ms_ = kRecallPauseMs;
  PresenceBatch presence_;
  LocalResults results_;
  int64_t results_sent_ms_ = 0;
  RunQueue runs_;
  // Ordered, but other nodes' inputs are not here yet.
  struct SmallRun {
    struct Part {
      uint32_t node = 0;
      proto::InputsOf key;
      std::optional<std::string> bytes;
    };
    // False if they are not of this run.
    bool Take(uint32_t node, const proto::InputsOf& key,
              const std::string& bytes);

    std::vector<uint32_t> slots;
    std::vector<uint32_t> nodes;
    std::vector<Part> parts;  // by other node, and then by slot
    size_t missing = 0;       // parts without bytes
  };
  std::vector<SmallRun> small_runs_;
  bool sends_inputs_ = false;
  Schedule schedule_;
  std::map<uint32_t, Signature> scheduled_;   // by slot
  uint64_t scheduled_operations_ = 0;         // executed, of this schedule
  const std::string* NodeOf(int rank) const;  // null: no node has the rank

  std::set<int> left_;
  int first_left_ = -1;
  Requests set_requests_{kMaxWaitingRequests};
  // Unanswered, by number and rank.
  std::map<std::pair<uint32_t, uint32_t>, proto::SetRequest> asked_sets_;
  uint32_t sets_answered_ = 0;  // the last answered number
  MemberRequests member_requests_{kMaxWaitingRequests};
  Requests joins_{1};
  uint32_t joins_answered_ = 0;
  std::set<int> settled_;  // local ranks whose last join has settled
  // By slot: the last generation that members that stand aside were asked for.
  std::map<uint32_t, uint32_t> wanted_;

  std::map<uint32_t, uint32_t> gpu_requests_;  // last number, by local rank
  std::map<GpuMemoryId, GpuMemory> gpu_memories_;
  bool communicators_enabled_ = false;
  uint32_t nccl_version_ = 0;
  uint64_t nccl_host_ = 0;
  bool gpus_lost_ = false;  // a run on GPUs has failed
  std::map<uint32_t, GpuCommunicator> communicators_;              // by number
  std::map<std::vector<uint32_t>, uint32_t> local_communicators_;  // by GPUs
  // Over several nodes, for a coordinator that replaces this one.
  std::vector<proto::Communicator> told_communicators_;
  std::map<uint32_t, proto::CommunicatorId> communicator_ids_;  // by number
  std::set<uint32_t> ids_received_;  // others were made here

  using Uuid = std::array<uint8_t, 16>;
  std::map<Uuid, uint32_t> own_gpus_;  // numbers
  // Of ranks that call NCCL themselves.
  struct RankCommunicator {
    SharedSet set;
    std::vector<uint32_t> gpus;  // of the local members
  };
  std::map<uint32_t, RankCommunicator> rank_communicators_;  // by number
  // Those of this node alone, by process set and GPUs.
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, uint32_t>
      local_rank_communicators_;

  LocalStragglers local_stragglers_;
  std::string late_told_;  // digest of what was reported last
  bool in_run_ = false;
  FrozenRanks frozen_;
  BlockedRanks blocked_;
  std::string blocked_told_;
  uint64_t confirm_round_ = 0;
  uint64_t handled_ = 0;

  size_t ids_told_ = 0;  // of communicator_ids_, to a coordinator that is new
  bool quiet_ = false;   // a coordinator is being told everything anew
  bool forget_ids_at_end_ = false;                    // of the schedule
  std::optional<proto::ExecutorMessage> unsent_end_;  // ScheduleEnded
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_EXECUTOR_EPOCH_H_
