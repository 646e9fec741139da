#include "worker/executor/executor_reporter.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "common/log_value.h"
#include "worker/executor/clock.h"

namespace maypole::worker {

ExecutorReporter::ExecutorReporter(std::string job, SharedStats stats,
                                   LoopWatchdog* watchdog)
    : job_(std::move(job)),
      stats_(std::move(stats)),
      gpu_use_(&*stats_),
      watchdog_(watchdog) {}

void ExecutorReporter::OnAction(const Action& action) {
  watchdog_->Doing(action);
  gpu_use_.OnAction(action, NowNs());
  const auto* const sent = std::get_if<SendToCoordinator>(&action);
  if (sent != nullptr && sent->message.has_rank_gpu()) NoteGpu(sent->message);
}

void ExecutorReporter::NoteGpu(const proto::ExecutorMessage& message) {
  GpuUuid uuid{};
  const std::string& bytes = message.rank_gpu().uuid();
  if (bytes.size() != uuid.size() || epoch_gpus_.size() >= kMaxGpus) return;
  std::copy(bytes.begin(), bytes.end(), uuid.begin());
  epoch_gpus_.insert(uuid);
}

// --- Clients -----------------------------------------------------------------

void ExecutorReporter::OnClient(const session::Hello& hello, int pid) {
  spdlog::info("event=client job={} rank={} pid={}", job_, hello.rank, pid);
}

void ExecutorReporter::OnClientRefused(int rank, const std::string& reason) {
  spdlog::warn("event=client_refused job={} rank={} reason={}", job_, rank,
               LogValue(reason));
  stats_->Count(ErrorKind::kRefused);
}

void ExecutorReporter::OnClientGone(int rank, const std::string& how) {
  spdlog::warn("event=client_gone job={} rank={} how={}", job_, rank,
               LogValue(how));
  stats_->Count(ErrorKind::kRankLost);
}

void ExecutorReporter::OnSupervisorGone(bool agreed) {
  if (agreed) {
    spdlog::info("event=end job={} reason=\"idle\"", job_);
  } else {
    spdlog::warn("event=supervisor_gone job={}", job_);
  }
}

// --- Coordinator and network -------------------------------------------------

void ExecutorReporter::OnCoordinatorAway(const absl::Status& status) {
  spdlog::warn("event=coordinator_away job={} epoch={} reason={}", job_, epoch_,
               LogValue(status.message()));
}

void ExecutorReporter::OnCoordinatorLost(const absl::Status& status) {
  spdlog::error("event=coordinator_lost job={} epoch={} reason={}", job_,
                epoch_, LogValue(status.message()));
  stats_->Count(ErrorKind::kCoordinatorLost);
}

void ExecutorReporter::OnCoordinatorBack() {
  StatsPage::Add(stats_->reconnects, 1);
  spdlog::warn("event=coordinator_reconnected job={}", job_);
}

void ExecutorReporter::OnNetworkFailed(const absl::Status& status) {
  spdlog::error("event=network_failed job={} epoch={} reason={}", job_, epoch_,
                LogValue(status.message()));
  stats_->Count(ErrorKind::kNetwork);
}

void ExecutorReporter::OnPresenceSent(uint64_t operations) {
  StatsPage::Add(stats_->presence, operations);
}

// --- Epochs ------------------------------------------------------------------

void ExecutorReporter::OnEpochStarted(const BoardConfig& config,
                                      const Board& board) {
  epoch_ = config.epoch;
  sampler_ = std::make_unique<CounterSampler>(&board);
  steps_ = StepCounter();
  present_since_.assign(config.slots, {});
  stats_->SetRanks({config.global_rank, config.local_size});
  stats_->local_ranks = config.local_size;
  StatsPage::Add(stats_->epochs, 1);
  spdlog::info("event=epoch_start job={} epoch={} ranks={} local={} nodes={}",
               job_, epoch_, config.size, config.local_size, config.nodes);
}

void ExecutorReporter::OnEpochAborted(const AbortBoard& abort) {
  spdlog::error("event=epoch_aborted job={} epoch={} reason={}", job_, epoch_,
                LogValue(abort.text));
  stats_->Count(ErrorKind::kEpochAborted);
}

void ExecutorReporter::OnEpochOver(const EpochNetwork* network) {
  spdlog::info("event=epoch_over job={} epoch={}", job_, epoch_);
  if (sampler_ != nullptr) Sample();
  OnTick(network);
  counted_sent_ = counted_received_ = 0;
  sampler_.reset();
  gpu_use_.OnEpochOver();
  epoch_gpus_.clear();
  epoch_ = 0;
  stats_->local_ranks = 0;
  stats_->board_bytes = 0;
  stats_->arena_bytes = 0;
  stats_->peer_nodes = 0;
  stats_->encrypted_nodes = 0;
  stats_->wire_bytes_per_s = 0;
  stats_->ucx_nodes = 0;
}

void ExecutorReporter::OnBoardBytes(size_t bytes) {
  stats_->board_bytes = bytes;
}

void ExecutorReporter::OnRankLeft(const MarkLeft& left) {
  spdlog::info("event=rank_left job={} epoch={} rank={} text={}", job_, epoch_,
               left.rank, LogValue(left.text));
}

void ExecutorReporter::OnChangeWanted(uint32_t ranks) {
  spdlog::info("event=change_wanted job={} epoch={} ranks={}", job_, epoch_,
               ranks);
}

void ExecutorReporter::OnStateCall(int rank,
                                   const session::StateRequest& request,
                                   uint64_t bytes, const Status& refusal) {
  const auto call = static_cast<session::StateCall>(request.call);
  if (call == session::StateCall::kFind) return;
  if (!refusal.ok()) {
    spdlog::warn("event=state_refused job={} epoch={} rank={} reason={}", job_,
                 epoch_, rank, LogValue(refusal.message()));
    return;
  }
  stats_->state_bytes = bytes;
  const bool kept = call == session::StateCall::kKeep;
  spdlog::info("event={} job={} epoch={} rank={} name={} bytes={}",
               kept ? "state_kept" : "state_dropped", job_, epoch_, rank,
               LogValue(request.name), bytes);
}

void ExecutorReporter::OnScan(const BoardSnapshot& snapshot) {
  StatsPage::Add(stats_->steps, steps_.Count(snapshot.generations));
  Sample();
}

void ExecutorReporter::FillStats(proto::NodeStats* stats) {
  stats->set_steps(stats_->steps);
  for (int kind = 0; kind < kKinds; ++kind) {
    stats->set_operations(stats->operations() + stats_->operations[kind]);
    stats->set_bytes(stats->bytes() + stats_->operation_bytes[kind]);
  }
  stats->set_runs(stats_->runs);
  stats->set_sent(stats_->network_sent);
  stats->set_received(stats_->network_received);
  for (uint64_t i = 0; i < stats_->local_ranks; ++i) {
    stats->add_waited_ns(stats_->waited_ns[i]);
  }
  for (const GpuLoads::Load& load :
       gpu_loads_.Look({epoch_gpus_.begin(), epoch_gpus_.end()})) {
    proto::GpuLoad* const gpu = stats->add_gpus();
    gpu->set_uuid(load.uuid.data(), load.uuid.size());
    gpu->set_used_bytes(load.used_bytes);
    gpu->set_total_bytes(load.total_bytes);
    if (load.busy_percent) gpu->set_busy_percent(*load.busy_percent);
  }
}

void ExecutorReporter::Sample() {
  const StatsPage::Counter& count =
      stats_->errors[static_cast<int>(ErrorKind::kMismatch)];
  const uint64_t before = count.load(std::memory_order_relaxed);
  sampler_->Sample(&*stats_);
  const uint64_t mismatches = count.load(std::memory_order_relaxed) - before;
  if (mismatches == 0) return;
  // The ranks of the node have found these mismatches themselves; only they
  // know the operations.
  spdlog::warn("event=mismatch job={} epoch={} operations={}", job_, epoch_,
               mismatches);
}

void ExecutorReporter::OnTick(const EpochNetwork* network) {
  if (network == nullptr) return;
  const uint64_t sent = network->bytes_sent();
  const uint64_t received = network->bytes_received();
  StatsPage::Add(stats_->network_sent, sent - counted_sent_);
  StatsPage::Add(stats_->network_received, received - counted_received_);
  counted_sent_ = sent;
  counted_received_ = received;
}

// --- Operations --------------------------------------------------------------

void ExecutorReporter::OnReady(const ReadySlot& ready) {
  // An operation is reported again when a rank begins to wait for it.
  PresentSince& since = present_since_[ready.slot];
  if (since.generation != ready.generation) since = {ready.generation, NowNs()};
}

void ExecutorReporter::OnIssued(const RunSpec& run) {
  const int kind = static_cast<int>(run.kind);
  StatsPage::Add(stats_->operations[kind], run.operations.size());
  StatsPage::Add(stats_->operation_bytes[kind], run.tensor_bytes);
  StatsPage::Add(stats_->runs, 1);
  stats_->run_operations.Observe(run.operations.size(), 1);
  for (const PlanOperation& op : run.operations) {
    ObservePresence(op.slot, op.generation, run.issued_ns);
  }
}

void ExecutorReporter::ObservePresence(uint32_t slot, uint32_t generation,
                                       int64_t now_ns) {
  const PresentSince& since = present_since_[slot];
  if (since.generation != generation) return;
  stats_->presence_ns.Observe(static_cast<uint64_t>(now_ns - since.ns), 1e-9);
}

void ExecutorReporter::OnInputsSent(size_t bytes, size_t nodes) {
  StatsPage::Add(stats_->network_sent, bytes * nodes);
}

void ExecutorReporter::OnSmallFinished(const FinishSmall& small) {
  const int64_t now_ns = NowNs();
  for (const SmallOperation& op : small.operations) {
    const int kind = static_cast<int>(op.signature.kind);
    StatsPage::Add(stats_->operations[kind], 1);
    StatsPage::Add(stats_->operation_bytes[kind], op.bytes());
    StatsPage::Add(stats_->small_operations, 1);
    ObservePresence(op.slot, op.generation, now_ns);
  }
  for (const std::string& inputs : small.inputs) {
    StatsPage::Add(stats_->network_received, inputs.size());
  }
}

void ExecutorReporter::OnOperationFailed(const FailSlot& fail,
                                         const std::string& name) {
  spdlog::warn("event=operation_failed job={} epoch={} tensor={} reason={}",
               job_, epoch_, LogValue(name), LogValue(fail.text));
  stats_->Count(ErrorKind::kOperationFailed);
}

void ExecutorReporter::OnTimelineClosed(const Status& status) {
  if (status.ok()) {
    spdlog::info("event=timeline_closed job={} epoch={}", job_, epoch_);
  } else {
    spdlog::warn("event=timeline_failed job={} epoch={} reason={}", job_,
                 epoch_, LogValue(status.message()));
  }
}

void ExecutorReporter::OnRunDone(const RunSpec& run) {
  stats_->run_ns.Observe(static_cast<uint64_t>(NowNs() - run.issued_ns), 1e-9);
}

}  // namespace maypole::worker
