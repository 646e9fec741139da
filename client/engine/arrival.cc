#include "client/engine/arrival.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/engine/eager.h"
#include "common/board/kill_point.h"
#include "common/board/urgent.h"

namespace maypole {
namespace {

// The signatures that the local ranks have submitted, with their global ranks.
std::vector<std::pair<int, Signature>> Collect(const Board& board,
                                               const Operation& op) {
  const BoardConfig& config = board.config();
  std::vector<std::pair<int, Signature>> all;
  for (const uint32_t i : op.set->locals) {
    all.emplace_back(config.global_rank[i],
                     board.SignatureOf(op.slot, i, op.generation));
  }
  return all;
}

// True if all ranks have submitted identical signatures, which is the usual
// case; compares them without a copy.
bool SameSignatures(const Board& board, const Operation& op) {
  constexpr size_t kWords = sizeof(Signature) / 8;
  std::array<uint64_t, kWords> mine;
  std::memcpy(mine.data(), &op.signature, sizeof(Signature));
  for (const uint32_t i : op.set->locals) {
    const Submission& theirs =
        board.arrival(op.slot, i).submissions[op.generation % 2];
    for (size_t w = 0; w < kWords; ++w) {
      if (theirs.signature[w].load(std::memory_order_relaxed) != mine[w]) {
        return false;
      }
    }
  }
  return true;
}

// Fails the operation if a rank has left without arriving. Here and in the
// executor, a side publishes its own event (arrival or leaving) before it
// checks for the other, so at least one side sees both.
void FailIfLeft(const Board& board, const Operation& op) {
  if (board.header().left_count.load(std::memory_order_seq_cst) == 0) return;
  for (const uint32_t i : op.set->locals) {
    const bool left = board.rank(i).state.load(std::memory_order_seq_cst) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const bool arrived =
        board.arrival(op.slot, i).generation.load(std::memory_order_seq_cst) >=
        op.generation;
    if (left && !arrived) {
      board.Fail(op.slot, op.generation, Code::kAborted,
                 op.Title() + ": rank " +
                     std::to_string(board.config().global_rank[i]) +
                     " has shut down; operations that need it cannot run");
      return;
    }
  }
}

void WakeMembers(const Board& board, uint32_t me, const Operation& op,
                 bool wake_me) {
  uint64_t members = wake_me ? uint64_t{1} << me : 0;
  for (const uint32_t i : op.set->locals) {
    if (i != me) members |= uint64_t{1} << i;
  }
  board.WakeRanks(members);
}

// Queues the operation's ticket and wakes the ranks that wait for it.
ArriveResult PutTicket(const Board& board, uint32_t me, uint64_t cursor,
                       const Operation& op, bool wake_me) {
  ArriveResult a;
  a.ticket = board.PlaceTicket(op.slot, op.generation, cursor);
  if (a.ticket == kNoPlace) {
    a.held = true;
    return a;
  }
  MAYPOLE_KILL_POINT("arrival.placed");
  WakeMembers(board, me, op, wake_me);
  return a;
}

// Leaves the operation to the executor, which executes it on GPUs, or queues
// its ticket if a result has no room there.
ArriveResult LeaveToExecutor(const Board& board, const Operation& op) {
  ArriveResult a;
  a.wake_executor = MarkSlotReady(board, op);
  return a;
}

// Starts the operation: all local ranks have arrived, and their signatures
// match.
ArriveResult SetGoing(const Board& board, uint32_t me, uint64_t cursor,
                      Operation& op) {
  if (board.IsOnGpu(op.slot, op.generation)) return LeaveToExecutor(board, op);
  const EagerInputs eager_inputs = CollectEagerInputs(board, me, op);
  if (eager_inputs.next == EagerInputs::Next::kRendezvous) {
    return PutTicket(board, me, cursor, op, !op.awaited);
  }
  // Another rank that arrived at the same time runs it, or it was aborted.
  if (eager_inputs.next == EagerInputs::Next::kOther ||
      !board.ClaimReduction(op.slot, op.generation)) {
    return ArriveResult();
  }
  MAYPOLE_KILL_POINT("arrival.claimed");
  const EagerResult result = EagerReduce(board, me, op, eager_inputs);
  MAYPOLE_KILL_POINT("arrival.reduced");
  if (!board.CommitEager(op.slot, op.generation, result)) return ArriveResult();
  MAYPOLE_KILL_POINT("arrival.committed");
  // The result of a gathering kind needs memory, which the progress engine
  // allocates.
  if (Gathers(op.signature.kind)) {
    return PutTicket(board, me, cursor, op, !op.awaited);
  }
  const bool done = DeliverEager(board, me, op, result).ok();
  MAYPOLE_KILL_POINT("arrival.delivered");
  ArriveResult a = PutTicket(board, me, cursor, op, /*wake_me=*/false);
  a.done = done;
  return a;
}

void WriteSplits(const Board& board, uint32_t me, const Operation& op) {
  const uint32_t number =
      board.slot(op.slot).splits.load(std::memory_order_relaxed);
  std::atomic<int64_t>* row = board.splits(number - 1, me, op.generation);
  for (size_t i = 0; i < op.splits.size(); ++i) {
    row[i].store(op.splits[i], std::memory_order_relaxed);
  }
}

}  // namespace

bool MarkSlotReady(const Board& board, const Operation& op) {
  board.ready_bits(op.slot / 64)
      .fetch_or(uint64_t{1} << (op.slot % 64), std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("ready.set");
  const bool wake = board.ClaimExecutorWake();
  MAYPOLE_KILL_POINT("ready.claimed");
  return wake;
}

bool PlaceHeldTicket(const Board& board, uint64_t cursor, RunRef slot,
                     uint32_t generation) {
  if (board.PlaceTicket(slot, generation, cursor) == kNoPlace) return false;
  board.WakeRanks(board.Members(slot));
  return true;
}

ArriveResult Arrive(const Board& board, uint32_t me, uint64_t cursor,
                    Operation& op, bool negotiated, EagerPool* pool) {
  // A rank must not arrive at an operation that has already failed: it could
  // continue with the next generations and overwrite what slower ranks still
  // read.
  FailIfLeft(board, op);
  if (board.OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    return ArriveResult();  // the progress engine will see the failure
  }
  int buffer = kNoBuffer;
  if (op.gpu_place == kNoGpuPlace) {
    buffer = negotiated ? ContributeCopy(board, me, op, pool)
                        : Contribute(board, me, op, pool);
  }
  // Before the arrival, so that the executor sees both.
  if (negotiated && op.urgency() != Urgency::kNone) {
    RaiseUrgency(board, op.slot, op.generation, op.urgency());
  }
  if (!op.splits.empty()) WriteSplits(board, me, op);
  board.Arrive(op.slot, me, op.generation, op.signature, buffer, op.arena,
               op.gpu_place, op.gpu_room);
  board.WakeAside();  // ranks that have joined must submit it too
  ArriveResult a;
  if (board.OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    return a;  // decided already; the progress engine will see the outcome
  }
  if (!board.AllArrived(op.slot, op.generation)) {
    FailIfLeft(board, op);
    return a;
  }
  MAYPOLE_KILL_POINT("arrival.complete");
  if (negotiated) {
    a.wake_executor = MarkSlotReady(board, op);
    return a;
  }
  if (!SameSignatures(board, op)) {
    const std::string mismatch = DescribeMismatch(op.name, Collect(board, op));
    if (!mismatch.empty()) {
      a.mismatch = board.Fail(op.slot, op.generation, Code::kFailedPrecondition,
                              mismatch);
      return a;
    }
  }
  return SetGoing(board, me, cursor, op);
}

}  // namespace maypole
