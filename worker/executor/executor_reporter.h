// ExecutorReporter: writes an executor's log lines and counters.
//
// Purpose: writes one log line, with job and epoch, for each event that
// ExecutorLogic reports, and counts the events in the statistics page.
//
// Thread contract: the executor's loop; OnRunDone() from any thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_REPORTER_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_REPORTER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "worker/core/liveness/step_counter.h"
#include "worker/executor/board/counter_sampler.h"
#include "worker/executor/board/stats_page.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/gpu_loads.h"
#include "worker/executor/gpu_use.h"
#include "worker/executor/loop_watchdog.h"

namespace maypole::worker {

class ExecutorReporter : public ExecutorObserver {
 public:
  // The watchdog must outlive this object.
  ExecutorReporter(std::string job, SharedStats stats, LoopWatchdog* watchdog);

  void OnAction(const Action& action) override;
  void OnClient(const session::Hello& hello, int pid) override;
  void OnClientRefused(int rank, const std::string& reason) override;
  void OnClientGone(int rank, const std::string& how) override;
  void OnSupervisorGone(bool agreed) override;

  void OnCoordinatorAway(const absl::Status& status) override;
  void OnCoordinatorLost(const absl::Status& status) override;
  void OnCoordinatorBack() override;
  void OnNetworkFailed(const absl::Status& status) override;
  void OnPresenceSent(uint64_t operations) override;

  void OnEpochStarted(const BoardConfig& config, const Board& board) override;
  void OnEpochAborted(const AbortBoard& abort) override;
  void OnEpochOver(const EpochNetwork* network) override;
  void OnBoardBytes(size_t bytes) override;
  void OnRankLeft(const MarkLeft& left) override;
  void OnStateCall(int rank, const session::StateRequest& request,
                   uint64_t bytes, const Status& refusal) override;
  void OnChangeWanted(uint32_t ranks) override;
  void OnScan(const BoardSnapshot& snapshot) override;
  void FillStats(proto::NodeStats* stats) override;
  void OnTick(const EpochNetwork* network) override;

  void OnReady(const ReadySlot& ready) override;
  void OnIssued(const RunSpec& run) override;
  void OnInputsSent(size_t bytes, size_t nodes) override;
  void OnSmallFinished(const FinishSmall& small) override;
  void OnOperationFailed(const FailSlot& fail,
                         const std::string& name) override;
  void OnRunDone(const RunSpec& run) override;
  void OnTimelineClosed(const Status& status) override;
  void OnGpuRunEnded(const GpuRun& run) override { gpu_use_.OnRunEnded(run); }

 private:
  void NoteGpu(const proto::ExecutorMessage& message);
  void Sample();
  // Observes the time since the operation became present here.
  void ObservePresence(uint32_t slot, uint32_t generation, int64_t now_ns);

  const std::string job_;
  const SharedStats stats_;
  GpuUse gpu_use_;
  GpuLoads gpu_loads_;
  std::set<GpuUuid> epoch_gpus_;  // GPUs that the epoch's ranks use
  LoopWatchdog* const watchdog_;
  uint64_t epoch_ = 0;                       // 0: none
  std::unique_ptr<CounterSampler> sampler_;  // of the epoch's board
  StepCounter steps_;
  // By slot: since when its last ready operation has been present here.
  struct PresentSince {
    uint32_t generation = 0;
    int64_t ns = 0;
  };
  std::vector<PresentSince> present_since_;
  uint64_t counted_sent_ = 0;  // of this epoch's network
  uint64_t counted_received_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_REPORTER_H_
