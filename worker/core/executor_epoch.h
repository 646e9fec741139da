// ExecutorEpoch: a running epoch on this node, from Welcome to its end.
//
// Purpose: owns the parts of the epoch and decides what concerns several of
// them. It reports to the coordinator what ranks have submitted, and writes to
// the board the runs that the coordinator orders. Operations within one node (a
// job on one node, or a process set within it) need neither; for them it
// handles only slots and departures. Events that concern one part go to that
// part.
//
//   names      slots of the board for the names of operations
//   requests   process sets and joins
//   memories, communicators, gpu_runs
//              operations on GPUs
//   schedule   the frozen tier
//   watch      stragglers, frozen and blocked ranks
//   results    checksums of results
//   relays     messages that executors pass on
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: if an event returns an error, the epoch cannot continue; the core
// aborts it with that text.
#ifndef MAYPOLE_WORKER_CORE_EXECUTOR_EPOCH_H_
#define MAYPOLE_WORKER_CORE_EXECUTOR_EPOCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/executor_core_options.h"
#include "worker/core/gpus/gpu_communicators.h"
#include "worker/core/gpus/gpu_runs.h"
#include "worker/core/gpus/rank_gpu_memories.h"
#include "worker/core/left_ranks.h"
#include "worker/core/liveness/blocked.h"
#include "worker/core/liveness/board_watch.h"
#include "worker/core/membership.h"
#include "worker/core/operations/name_slots.h"
#include "worker/core/operations/presence.h"
#include "worker/core/operations/rank_requests.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/result_reports.h"
#include "worker/core/operations/runs.h"
#include "worker/core/operations/schedule_follower.h"
#include "worker/core/operations/sets.h"
#include "worker/core/operations/slots.h"
#include "worker/core/operations/small_runs.h"
#include "worker/core/relays.h"

namespace maypole::worker {

class ExecutorEpoch : private WaitJudge {
 public:
  // `link` and `actions` must outlive this object.
  ExecutorEpoch(EpochInfo info, const ExecutorCoreOptions& options,
                CoordinatorLink* link, std::vector<Action>* actions);
  ExecutorEpoch(const ExecutorEpoch&) = delete;
  ExecutorEpoch& operator=(const ExecutorEpoch&) = delete;

  const EpochInfo& info() const { return info_; }
  const LeftRanks& left() const { return left_; }
  NameSlots& names() { return names_; }
  const NameSlots& names() const { return names_; }
  RankRequests& requests() { return requests_; }
  RankGpuMemories& memories() { return memories_; }
  GpuCommunicators& communicators() { return communicators_; }
  GpuRuns& gpu_runs() { return gpu_runs_; }
  ScheduleFollower& schedule() { return schedule_; }
  const ScheduleFollower& schedule() const { return schedule_; }
  BoardWatch& watch() { return watch_; }
  const BoardWatch& watch() const { return watch_; }
  Relays& relays() { return relays_; }
  ResultReports& results() { return results_; }
  const ResultReports& results() const { return results_; }

  absl::Status OnReadySlot(const ReadySlot& ready);
  void OnPresenceAcknowledged();
  absl::Status OnExecute(const proto::Execute& execute);
  absl::Status OnOperationFailed(const proto::OperationFailed& failed);
  void OnRunFree(uint32_t record);
  bool waits_for_records() const { return runs_.waits(); }
  absl::Status OnNamesRetired(const proto::NamesRetired& retired);
  absl::Status OnPeerMessage(uint32_t node, const proto::PeerMessage& message);
  absl::Status OnTime(int64_t now_ms);

  // These end a schedule, because a schedule has no such events.
  absl::Status OnSetRequest(const LocalMember& member,
                            const session::SetRequest& request);
  absl::Status OnJoinRequest(const LocalMember& member,
                             const session::JoinRequest& request);
  // `local_rank` is -1 for a rank of another node. If called twice for a rank,
  // the first text counts.
  absl::Status OnRankLeft(int rank, int local_rank, const std::string& text);

  // All nodes have this NCCL, so operations may run on several GPUs. nccl_host:
  // as in proto::RankGpu.
  void EnableNccl(uint32_t version, uint64_t nccl_host) {
    nccl_ = {.enabled = true, .version = version, .host = nccl_host};
  }

  // --- A coordinator that replaces another (docs/recovery.md) ----------------
  void OnCoordinatorReplaced();
  // Adds what a coordinator that knows nothing must know of this epoch.
  void FillState(proto::NodeState* state) const;
  // The coordinator knows the epoch again: reports all that is unanswered.
  void OnRecovered(const proto::Recovered& recovered);
  // A rank waits for something that only the coordinator can give.
  bool WaitsForCoordinator() const;

  // Returns true if a rank of this node was in a run with other nodes as of the
  // last snapshot; or a run waits for a record or for inputs of other nodes; or
  // a run on GPUs has failed; or a schedule is active, which cannot end without
  // messages of the other nodes.
  bool InRun() const {
    return watch_.in_run() || runs_.waits() || small_runs_.waits() ||
           gpu_runs_.failed() || schedule_.active();
  }

 private:
  // A rank has begun to wait for an operation that was reported before.
  void OnUrgent(const ReadySlot& ready, SlotEntry* entry);

  // --- WaitJudge -------------------------------------------------------------
  bool WaitsInJoin(uint32_t local) const override;
  bool WaitsForSet(uint32_t local) const override;
  bool WaitsForOthers(uint32_t slot, uint32_t generation) const override;
  bool IsSlot(uint32_t slot) const override {
    return slots_.Get(slot) != nullptr;
  }

  const EpochInfo info_;
  EpochOutput output_;
  LeftRanks left_;
  SetTable sets_;
  SlotTable slots_;
  PresenceBatch presence_;
  RunQueue runs_;
  SmallRuns small_runs_;
  ScheduleFollower schedule_;
  NameSlots names_;
  RankRequests requests_;
  JobNccl nccl_;
  RankGpuMemories memories_;
  GpuCommunicators communicators_;
  GpuRuns gpu_runs_;
  ResultReports results_;
  BoardWatch watch_;
  Relays relays_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EXECUTOR_EPOCH_H_
