#include "client/engine/progress_engine.h"

#include <algorithm>
#include <utility>

#include "client/engine/eager.h"
#include "common/board/copy_text.h"
#include "common/board/kill_point.h"

namespace maypole {
ProgressEngine::ProgressEngine(const Board* board, uint32_t local_rank,
                               SubmittedOperations* table)
    : board_(board),
      me_(local_rank),
      table_(table),
      mover_(board, local_rank, [table] { return table->Now(); }),
      gpu_runs_(board, local_rank, table) {}

bool ProgressEngine::Step() {
  mover_.BeginStep();
  bool moved = TakeTickets();
  bool may_stage = true;
  for (Run& run : active_) {
    moved |= Advance(run, may_stage);
    // Ring entries are taken in ticket order.
    may_stage = may_stage && run.staged == run.stage_end;
  }
  moved |= RetireEnded();
  gpu_runs_.Watch();
  moved |= HandleFailures();
  // HandleAbort() needs all tickets to be taken first.
  if (mover_.may_move() && board_->aborted()) moved |= HandleAbort();
  return moved;
}

// --- Tickets ----------------------------------------------------------------

bool ProgressEngine::TakeTickets() {
  bool moved = false;
  Ticket ticket;
  while (active_.size() < kWindow && mover_.may_move()) {
    uint64_t expected = cursor_.load(std::memory_order_acquire);
    uint64_t position = expected;
    if (!board_->ReadTicket(&position, &ticket)) break;
    MAYPOLE_KILL_POINT("engine.ticket");
    TakeTicket(ticket);
    // If Pass() has advanced the cursor already, the operation had ended and
    // TakeTicket() did nothing.
    cursor_.compare_exchange_strong(expected, position + 1,
                                    std::memory_order_acq_rel);
    moved = true;
  }
  return moved;
}

void ProgressEngine::SkipTickets() {
  Ticket ticket;
  for (;;) {
    uint64_t expected = cursor_.load(std::memory_order_acquire);
    uint64_t position = expected;
    if (!board_->ReadTicket(&position, &ticket)) return;
    cursor_.compare_exchange_strong(expected, position + 1,
                                    std::memory_order_acq_rel);
  }
}

void ProgressEngine::TakeTicket(const Ticket& ticket) {
  if (!board_->IsMember(ticket, me_)) return;
  Run run;
  if (board_->IsNegotiated(ticket.ref)) {
    run = MakePlannedRun(ticket.ref);
  } else {
    const uint32_t g = table_->WaitingGeneration(ticket.ref);
    // This rank's operation has already ended, in Arrive() or by an abort.
    if (g == 0 || !ticket.Is(g) || TakeResult(ticket.ref, g)) return;
    run = MakeSlotRun(ticket.ref, g);
  }
  if (run.parts.empty()) return;  // ended by an abort before its ticket came
  if (run.site == RunSite::kRanks) {
    gpu_runs_.Begin(run);
    active_.push_back(std::move(run));
    return;
  }
  if (run.site == RunSite::kExecutors) {
    SizeResult(*board_, me_, run);
    active_.push_back(std::move(run));  // nothing to move: RetireEnded()
    return;
  }
  if (Status s = LayOut(*board_, me_, run); !s.ok()) {
    run.broken = true;
    table_->GiveUp(std::move(s));
  }
  ChooseStore(run);
  run.on_gpu = std::any_of(run.parts.begin(), run.parts.end(), [](auto& part) {
    return part.operation->gpu_place != kNoGpuPlace;
  });
  active_.push_back(std::move(run));
  MAYPOLE_KILL_POINT("engine.taken");
  mover_.PublishStaged(active_.back());
}

// Decides for the same runs on all ranks of the node.
void ProgressEngine::ChooseStore(Run& run) {
  if (run.signature.kind != Kind::kAllreduce ||
      run.signature.process_set != 0 || run.negotiated || run.arena ||
      run.signature.prescale != 1.0 || run.bytes < StoreChoice::kFromBytes) {
    return;
  }
  const StoreChoice::Decision decision = store_choice_.Next();
  run.store = decision.store;
  run.measured = decision.measure;
}

// Measures from the moment at which all ranks had begun, so that a straggler
// does not count as a slow store.
void ProgressEngine::RecordStore(const Run& run) {
  if (!run.measured || run.all_began == 0) return;
  const auto took = static_cast<double>(table_->Now() - run.all_began);
  store_choice_.Record(run.store, took / static_cast<double>(run.bytes));
}

// Takes the result of an eager operation that another rank has run. False if
// this is not such an operation.
bool ProgressEngine::TakeEager(uint32_t slot, uint32_t generation) {
  EagerResult result;
  if (!board_->ResultOf(slot, generation, &result)) return false;
  Operation* op = table_->Claim(slot, generation);
  mover_.CountMoved(op->signature.Bytes());
  if (Status s = DeliverEager(*board_, me_, *op, result); !s.ok()) {
    table_->GiveUp(s);
    table_->Finish(op, std::move(s));
    return true;
  }
  table_->Finish(op, Status());
  return true;
}

// Ends an operation that the executor has executed on GPUs. False if this is
// not such an operation: ranks may also have committed it on the host.
bool ProgressEngine::TakeFromGpu(uint32_t slot, uint32_t generation) {
  if (board_->OutcomeOf(slot, generation) != Outcome::kCommitted ||
      TagOf(board_->slot(slot).on_gpus.load(std::memory_order_relaxed)) !=
          generation) {
    return false;
  }
  Operation* op = table_->Claim(slot, generation);
  if (Gathers(op->signature.kind)) {
    Run run{.ref = slot, .generation = generation};
    run.parts.push_back({op, 0, 0});
    SizeResult(*board_, me_, run);
  }
  SetOnGpu(op);
  board_->progress(slot, me_).consumed.store(Tagged(generation, UINT32_MAX),
                                             std::memory_order_release);
  table_->Finish(op, Status());
  return true;
}

void ProgressEngine::SetOnGpu(Operation* op) const {
  op->ran_on_gpu = true;
  if (op->staged == nullptr) return;
  op->staged->ResultOnGpu(ResultAt(board_->config(), me_, *op));
}

Run ProgressEngine::MakeSlotRun(RunRef ref, uint32_t generation) {
  Run run{.ref = ref, .generation = generation};
  Operation* op = table_->Claim(ref, generation);
  run.parts.push_back({op, 0, op->signature.Bytes()});
  run.bytes = run.parts.back().end;
  return run;
}

Run ProgressEngine::MakePlannedRun(RunRef ref) {
  const uint32_t n = ref - board_->config().slots;
  const PlanHeader& plan = board_->plan(n);
  const PlanOperation* planned = board_->plan_operations(n);
  Run run{.ref = ref, .generation = plan.generation, .negotiated = true};
  run.bytes = plan.bytes;
  run.site = plan.site;
  run.communicator = plan.communicator;
  for (uint32_t i = 0; i < plan.operations; ++i) {
    Operation* op = table_->Claim(planned[i].slot, planned[i].generation);
    if (op == nullptr) continue;
    run.parts.push_back(
        {op, planned[i].offset, planned[i].offset + op->signature.Bytes()});
  }
  return run;
}

// --- Progress ---------------------------------------------------------------

bool ProgressEngine::Advance(Run& run, bool may_stage) {
  if (run.broken || run.left) return false;
  if (run.site == RunSite::kRanks) return gpu_runs_.Advance(run);
  bool moved = false;
  if (run.on_gpu) {
    if (!BringToHost(run)) return false;
    moved = true;
  }
  return mover_.Move(run, may_stage) || moved;
}

// True if the inputs of all its operations are in host memory now.
bool ProgressEngine::BringToHost(Run& run) {
  for (const Part& part : run.parts) {
    Operation& op = *part.operation;
    if (op.gpu_place == kNoGpuPlace) continue;
    bool done = false;
    if (Status s = op.staged->BringToHost(&op, &done); !s.ok()) {
      run.broken = true;
      table_->GiveUp(op.Explain(s));
      return false;
    }
    if (!done) return false;
  }
  if (!Gathers(run.signature.kind)) FindPieces(*board_, me_, run);
  run.on_gpu = false;
  return true;
}

// --- Ends -------------------------------------------------------------------

bool ProgressEngine::RetireEnded() {
  bool moved = false;
  while (!active_.empty()) {
    Run& run = active_.front();
    if (run.broken || run.left) break;
    if (run.site == RunSite::kRanks) {
      if (!run.ended) break;
      gpu_runs_.OnEnded(run);
      Retire(run);
      active_.pop_front();
      moved = true;
      continue;
    }
    if (run.chunks == 0) {
      if (board_->Decide(run.ref, run.generation, Outcome::kCommitted) !=
          Outcome::kCommitted) {
        break;  // aborted: HandleAbort() retires it
      }
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

// Ends a run successfully or, if aborted, with errors that name each operation.
void ProgressEngine::Retire(Run& run, bool aborted) {
  MAYPOLE_KILL_POINT("retire.begun");
  mover_.PublishLeft(run);
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
      const auto state = gpu_runs_.PollAborted(*it);
      if (state == RankGpuRuns::AfterAbort::kWaits) {
        ++it;
        continue;
      }
      const bool ended = state == RankGpuRuns::AfterAbort::kEnded;
      if (ended) gpu_runs_.OnEnded(*it);
      Retire(*it, /*aborted=*/!ended);
      it = active_.erase(it);
      moved = true;
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
    mover_.PublishLeft(
        Run{.ref = op->slot, .generation = op->generation, .set = op->set});
    table_->Claim(op->slot, op->generation);
    table_->Finish(op, op->Explain(status));
    moved = true;
  }
  return moved;
}

// True if the executor no longer writes to any tensor of this rank. After the
// abort grace a stuck GPU also counts as idle; it may still write, so the
// contents of the tensor stay undefined. Called after the abort was seen.
bool ProgressEngine::GpuIsIdle() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return board_->header().gpu_runs.load() == 0 || table_->AbortIsOverdue();
}

// Publishes that this rank no longer writes to any tensor of the run.
bool ProgressEngine::LeaveArena(Run& run) {
  if (run.left) return false;
  run.left = true;
  mover_.PublishLeft(run);
  MAYPOLE_KILL_POINT("abort.arena_left");
  return true;
}

// True if no peer can still write to our tensors: each has left the run or the
// job. If a peer is stuck for too long, detaches the tensors, so that it writes
// to pages that we no longer use.
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
