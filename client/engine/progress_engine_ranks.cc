// The part of ProgressEngine that has the runs which this rank's own GPU
// executes, together with those of other ranks (RunSite::kRanks).
#include <string>
#include <utility>
#include <vector>

#include "client/engine/progress_engine.h"

namespace maypole {
namespace {

// NCCL says that another rank is lost, but not why: the executor and the
// coordinator know. Longer than they take by default (--resume_timeout).
constexpr int64_t kCauseNs = 4'000'000'000;

}  // namespace

void ProgressEngine::BeginOnRank(Run& run) {
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

bool ProgressEngine::AdvanceOnRank(Run& run) {
  if (run.ended || run.on_rank == nullptr) return false;
  RankRun::State state = RankRun::State::kWaiting;
  const Status s = run.on_rank->Poll(&state);
  if (!s.ok()) {
    // An abort is why; see RetireAbortedOnRank().
    if (board_->aborted() || AwaitCause(s, &run.failed_at)) return false;
    run.broken = true;
    table_->GiveUp(run.parts.front().operation->Explain(s));
    return false;
  }
  if (state == RankRun::State::kWaiting) return false;
  run.ended = true;
  return true;
}

// True while an abort may still come that has the cause of the error.
bool ProgressEngine::AwaitCause(const Status& error, int64_t* failed_at) {
  const int64_t now = table_->Now();
  if (*failed_at == 0) *failed_at = now;
  return error.code() == Code::kUnavailable && now - *failed_at < kCauseNs;
}

void ProgressEngine::RetireOnRank(Run& run) {
  for (const Part& part : run.parts) {
    part.operation->staged->ResultOnGpu(0);
    part.operation->ran_on_gpu = true;
  }
  enqueued_.push_back({run.on_rank, run.parts.front().operation->Title()});
  enqueued_count_.store(enqueued_.size(), std::memory_order_relaxed);
  Retire(run);
}

// After an abort. Waits until this rank's GPU writes to its tensors no more,
// but not for one that is stuck: then their contents are undefined for longer.
bool ProgressEngine::RetireAbortedOnRank(Run& run) {
  RankRun::State state = RankRun::State::kWaiting;
  const bool failed = run.on_rank == nullptr || !run.on_rank->Poll(&state).ok();
  if (!failed && state == RankRun::State::kEnded) {
    RetireOnRank(run);
    return true;
  }
  if (!failed && !table_->AbortIsOverdue()) return false;
  Retire(run, /*aborted=*/true);
  return true;
}

// The operations have ended for the user, but the GPU or NCCL may still fail:
// then the other ranks' GPUs wait for this one's for ever.
void ProgressEngine::WatchEnqueued() {
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
