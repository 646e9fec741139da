#include "client/engine/rank_gpu_runs.h"

#include <utility>

namespace maypole {
namespace {

// How long to wait for the cause when NCCL reports a lost rank: the executor
// and the coordinator know it. Longer than they take by default
// (--resume_timeout).
constexpr int64_t kCauseNs = 4'000'000'000;

}  // namespace

void RankGpuRuns::Begin(Run& run) {
  Operation& first = *run.parts.front().operation;
  run.signature = first.signature;
  run.set = first.set;
  if (board_->aborted()) return;
  std::string why = "this rank does not";
  std::vector<Operation*> operations;
  for (const Part& p : run.parts) operations.push_back(p.operation);
  RankPart part{.communicator = run.communicator,
                .position = static_cast<uint32_t>(
                    run.set->PositionOf(board_->config().global_rank[me_])),
                .rows = {}};
  if (Gathers(run.signature.kind)) part.rows = SizeResult(*board_, me_, run);
  if (first.gathered_bytes > first.gpu_room) {
    why = "its result of " + std::to_string(first.gathered_bytes) +
          " bytes has room for " + std::to_string(first.gpu_room) + " only";
  } else if (first.staged != nullptr) {
    run.on_rank = first.staged->BeginOnRank(part, operations);
  }
  if (run.on_rank != nullptr) return;
  run.broken = true;
  table_->GiveUp(first.Explain(
      Status(Code::kInternal,
             "the executor has planned it for GPUs of ranks that call NCCL "
             "themselves, but " +
                 why)));
}

bool RankGpuRuns::Advance(Run& run) {
  if (run.ended || run.on_rank == nullptr) return false;
  RankRun::State state = RankRun::State::kWaiting;
  const Status s = run.on_rank->Poll(&state);
  if (!s.ok()) {
    // After an abort, PollAborted() deals with the run.
    if (board_->aborted() || AwaitCause(s, &run.failed_at)) return false;
    run.broken = true;
    table_->GiveUp(run.parts.front().operation->Explain(s));
    return false;
  }
  if (state == RankRun::State::kWaiting) return false;
  run.ended = true;
  return true;
}

// True while an abort that names the cause of the error may still come.
bool RankGpuRuns::AwaitCause(const Status& error, int64_t* failed_at) {
  const int64_t now = table_->Now();
  if (*failed_at == 0) *failed_at = now;
  return error.code() == Code::kUnavailable && now - *failed_at < kCauseNs;
}

void RankGpuRuns::OnEnded(const Run& run) {
  for (const Part& part : run.parts) {
    part.operation->staged->ResultOnGpu(0);
    part.operation->ran_on_gpu = true;
  }
  enqueued_.push_back({run.on_rank, run.parts.front().operation->Title()});
  enqueued_count_.store(enqueued_.size(), std::memory_order_relaxed);
}

RankGpuRuns::AfterAbort RankGpuRuns::PollAborted(const Run& run) const {
  RankRun::State state = RankRun::State::kWaiting;
  if (run.on_rank == nullptr || !run.on_rank->Poll(&state).ok()) {
    return AfterAbort::kFailed;
  }
  if (state == RankRun::State::kEnded) return AfterAbort::kEnded;
  return table_->AbortIsOverdue() ? AfterAbort::kFailed : AfterAbort::kWaits;
}

void RankGpuRuns::Watch() {
  if (enqueued_.empty()) return;
  std::erase_if(enqueued_, [this](EnqueuedRun& e) {
    RankRun::State state = RankRun::State::kEnqueued;
    const Status s = e.run->Poll(&state);
    if (s.ok()) return state == RankRun::State::kEnded;
    if (board_->aborted()) return true;
    if (AwaitCause(s, &e.failed_at)) return false;
    table_->GiveUp(Status(s.code(), e.title + ": " + s.message()));
    return true;
  });
  enqueued_count_.store(enqueued_.size(), std::memory_order_relaxed);
}

}  // namespace maypole
