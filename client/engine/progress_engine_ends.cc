// The part of ProgressEngine that ends runs and operations: by success, by a
// failure before any data moved, or by an abort. The other part is
// progress_engine.cc.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "client/engine/progress_engine.h"
#include "common/board/copy_text.h"
#include "common/board/kill_point.h"

namespace maypole {

bool ProgressEngine::Commit(Run& run) {
  return board_->Decide(run.ref, run.generation, Outcome::kCommitted) ==
         Outcome::kCommitted;
}

bool ProgressEngine::RetireEnded() {
  bool moved = false;
  while (!active_.empty()) {
    Run& run = active_.front();
    if (run.broken || run.left) break;
    if (run.site == RunSite::kRanks) {
      if (!run.ended) break;
      RetireOnRank(run);
      active_.pop_front();
      moved = true;
      continue;
    }
    if (run.chunks == 0) {
      if (!Commit(run)) break;  // aborted: HandleAbort() retires it
    } else if (run.consumed < run.chunks) {
      break;
    }
    RecordStore(run);
    Retire(run);
    active_.pop_front();
    moved = true;
  }
  return moved;
}

// Ends a run in success or, if aborted, with errors that name each operation.
void ProgressEngine::Retire(Run& run, bool aborted) {
  MAYPOLE_KILL_POINT("retire.begun");
  Publish(board_->progress(run.ref, me_).consumed, run, UINT32_MAX);
  MAYPOLE_KILL_POINT("retire.published");
  for (const Part& part : run.parts) {
    if (run.site == RunSite::kExecutors && !aborted) SetOnGpu(part.operation);
    table_->Finish(part.operation,
                   aborted ? AbortedStatus(run, *part.operation) : Status());
  }
}

bool ProgressEngine::HandleFailures() {
  const uint32_t failures =
      board_->header().failures.load(std::memory_order_acquire);
  if (failures == failures_seen_ && !recheck_.exchange(false)) return false;
  failures_seen_ = failures;
  for (Operation* op : table_->Waiting()) {
    const Outcome outcome = board_->OutcomeOf(op->slot, op->generation);
    if (outcome == Outcome::kFailed || outcome == Outcome::kSuperseded) {
      table_->Claim(op->slot, op->generation);
      table_->Finish(op, FailedStatus(*op));
    }
  }
  return true;
}

Status ProgressEngine::FailedStatus(const Operation& op) const {
  Status error = board_->ErrorOf(op.slot, op.generation);
  if (error.message().empty()) {  // superseded: the board has the reason
    error = board_->AbortStatus();
    if (error.ok()) {
      const bool left = board_->header().left_count.load() > 0;
      error = Status(Code::kAborted, left ? CopyText(board_->header().left_text)
                                          : "failed on another rank");
    }
  }
  return op.Explain(error);
}

Status ProgressEngine::AbortedStatus(const Run& run,
                                     const Operation& op) const {
  const Status status = board_->AbortStatus();
  std::string text = op.Explain(status).message();
  const bool written = run.arena || std::max(run.reduced, run.consumed) > 0;
  if (written && op.in_place()) {
    text +=
        " (the tensor was being reduced in place: its contents are "
        "undefined)";
  }
  return Status(status.code(), std::move(text));
}

// After an abort, every run that is not committed fails. So does every
// operation that waits for a ticket, unless a rank has committed it.
bool ProgressEngine::HandleAbort() {
  if (TakeTickets()) return true;
  bool moved = false;
  for (auto it = active_.begin(); it != active_.end();) {
    if (it->site == RunSite::kRanks) {
      const bool retired = RetireAbortedOnRank(*it);
      it = retired ? active_.erase(it) : it + 1;
      moved |= retired;
      continue;
    }
    const bool committed =
        board_->Decide(it->ref, it->generation, Outcome::kAborted) ==
        Outcome::kCommitted;
    if (committed && !it->broken) {
      ++it;  // all results are on the board: they can still be delivered
      continue;
    }
    if (it->arena && !it->negotiated) {
      moved |= LeaveArena(*it);
      if (!PeersHaveLeft(*it)) {
        ++it;
        continue;
      }
    }
    Retire(*it, /*aborted=*/true);
    it = active_.erase(it);
    moved = true;
  }
  if (active_.size() >= kWindow) return moved;
  const Status status = board_->AbortStatus();
  for (Operation* op : table_->Waiting()) {
    if (board_->Decide(op->slot, op->generation, Outcome::kAborted) ==
        Outcome::kCommitted) {
      // Its ticket may never come: the rank that ran it may have died.
      moved |= TakeResult(op->slot, op->generation);
      continue;
    }
    if (op->gpu_place != kNoGpuPlace && !GpuIsIdle()) continue;
    // Peers that have the ticket need not wait for us: see PeersHaveLeft().
    Publish(board_->progress(op->slot, me_).consumed,
            Run{.ref = op->slot, .generation = op->generation, .set = op->set},
            UINT32_MAX);
    table_->Claim(op->slot, op->generation);
    table_->Finish(op, op->Explain(status));
    moved = true;
  }
  return moved;
}

// True if the executor writes to no tensor of this rank any more. A GPU that is
// stuck is not waited for; then the contents of the tensor are undefined for
// longer. Called after the abort was seen.
bool ProgressEngine::GpuIsIdle() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return board_->header().gpu_runs.load() == 0 || table_->AbortIsOverdue();
}

// Publishes that this rank writes to no tensors of the run any more.
bool ProgressEngine::LeaveArena(Run& run) {
  if (run.left) return false;
  run.left = true;
  Publish(board_->progress(run.ref, me_).consumed, run, UINT32_MAX);
  MAYPOLE_KILL_POINT("abort.arena_left");
  return true;
}

// True if no peer writes to our tensors any more: each has left the run or the
// job. If one is stuck for too long, detaches the tensors, so that it writes to
// pages that we no longer use.
bool ProgressEngine::PeersHaveLeft(const Run& run) {
  for (const uint32_t j : run.set->locals) {
    if (j == me_) continue;
    const uint64_t word =
        board_->progress(run.ref, j).consumed.load(std::memory_order_acquire);
    const bool gone = board_->rank(j).state.load(std::memory_order_acquire) ==
                      static_cast<uint32_t>(RankState::kLeft);
    if (gone || CountAt(word, run.generation) == UINT32_MAX) continue;
    if (!table_->AbortIsOverdue()) return false;
    for (const Part& part : run.parts) table_->Detach(part.operation);
    return true;
  }
  return true;
}

}  // namespace maypole
