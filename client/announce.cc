#include "client/announce.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/kill_point.h"
#include "common/reduce.h"
#include "common/urgent.h"

namespace maypole {
namespace {

// The signatures of generation g by global rank.
std::vector<std::pair<int, Signature>> Collect(const Board& board,
                                               uint32_t slot, uint32_t g) {
  const BoardConfig& config = board.config();
  std::vector<std::pair<int, Signature>> all;
  for (uint32_t i = 0; i < config.local_size; ++i) {
    all.emplace_back(config.global_rank[i], board.SignatureOf(slot, i, g));
  }
  return all;
}

// The usual case, without a copy: everybody has submitted the very same.
bool SameSignatures(const Board& board, const Operation& op) {
  constexpr size_t kWords = sizeof(Signature) / 8;
  std::array<uint64_t, kWords> mine;
  std::memcpy(mine.data(), &op.signature, sizeof(Signature));
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
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

// Arrival and leaving are both published before the other is looked at (here
// and in the executor), so at least one side sees both.
void FailIfLeft(const Board& board, const Operation& op) {
  if (board.header().left_count.load(std::memory_order_seq_cst) == 0) return;
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    const bool left = board.rank(i).state.load(std::memory_order_seq_cst) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const bool arrived =
        board.arrival(op.slot, i).generation.load(std::memory_order_seq_cst) >=
        op.generation;
    if (left && !arrived) {
      board.Fail(op.slot, op.generation, Code::kAborted,
                 op.Title() + ": " + board.header().left_text);
      return;
    }
  }
}

bool IsSmall(const Board& board, const Operation& op) {
  const Kind kind = op.signature.kind;
  return (kind == Kind::kAllreduce || kind == Kind::kBroadcast) &&
         op.signature.Bytes() <= board.config().small_bytes;
}

// Takes a buffer and copies the input in, if this rank contributes one.
int Contribute(const Board& board, uint32_t me, const Operation& op,
               SmallPool* pool) {
  const Signature& s = op.signature;
  const int buffer = pool->Take(op.slot, op.generation);
  if (buffer < 0) return -1;
  MAYPOLE_KILL_POINT("pool.taken");
  std::byte* to = board.pool(me, static_cast<uint32_t>(buffer));
  const bool reads =
      s.kind == Kind::kAllreduce || s.root == board.config().global_rank[me];
  if (!reads || s.Bytes() == 0) return buffer;
  if (s.prescale != 1.0) {
    Scale(s.dtype, op.input, to, static_cast<size_t>(s.Elements()), s.prescale);
  } else {
    std::memcpy(to, op.input, s.Bytes());
  }
  return buffer;
}

// Reduces into the own buffer (allreduce), or finds the root's (broadcast).
SmallResult Reduce(const Board& board, uint32_t me, const Operation& op,
                   std::span<const uint32_t> buffers) {
  const BoardConfig& config = board.config();
  const Signature& s = op.signature;
  if (s.kind == Kind::kBroadcast) {
    for (uint32_t i = 0; i < config.local_size; ++i) {
      if (config.global_rank[i] == s.root) return {i, buffers[i]};
    }
  }
  std::array<const std::byte*, kMaxLocalRanks> inputs;
  for (uint32_t i = 0; i < config.local_size; ++i) {
    inputs[i] = board.pool(i, buffers[i]);
  }
  Finish finish;
  if (s.op == Op::kAverage) finish.divisor = config.size;
  finish.scale = s.postscale;
  Sum(s.dtype, std::span(inputs.data(), config.local_size),
      board.pool(me, buffers[me]), static_cast<size_t>(s.Elements()), finish);
  return {me, buffers[me]};
}

// False if some rank had no buffer: the operation goes the large way.
bool AllContributed(const Board& board, const Operation& op,
                    std::span<uint32_t> buffers) {
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    const int buffer = board.BufferOf(op.slot, i, op.generation);
    if (buffer < 0) return false;
    buffers[i] = static_cast<uint32_t>(buffer);
  }
  return true;
}

void WakeOthers(const Board& board, uint32_t me) {
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    if (i != me) board.WakeRank(i);
  }
}

// All local ranks are there and agree.
Announced SetGoing(const Board& board, uint32_t me, uint64_t cursor,
                   const Operation& op) {
  Announced a;
  std::array<uint32_t, kMaxLocalRanks> buffers;
  if (IsSmall(board, op) && AllContributed(board, op, buffers)) {
    // Another last arriver may be at it, or an abort have come.
    if (!board.ClaimReduction(op.slot, op.generation)) return a;
    MAYPOLE_KILL_POINT("announce.claimed");
    const SmallResult result = Reduce(board, me, op, buffers);
    MAYPOLE_KILL_POINT("announce.reduced");
    if (!board.CommitSmall(op.slot, op.generation, result)) return a;
    MAYPOLE_KILL_POINT("announce.committed");
    DeliverSmall(board, me, op, result);
    a.done = true;
    MAYPOLE_KILL_POINT("announce.delivered");
    a.ticket = board.PlaceTicket(op.slot, op.generation, cursor);
    MAYPOLE_KILL_POINT("announce.small_placed");
    WakeOthers(board, me);
    return a;
  }
  a.ticket = board.PlaceTicket(op.slot, op.generation, cursor);
  MAYPOLE_KILL_POINT("announce.placed");
  if (op.awaited) {
    WakeOthers(board, me);
  } else {
    board.WakeRanks();
  }
  return a;
}

}  // namespace

void DeliverSmall(const Board& board, uint32_t me, const Operation& op,
                  const SmallResult& result) {
  const uint64_t bytes = op.signature.Bytes();
  if (bytes > 0) {
    std::memcpy(op.output, board.pool(result.local, result.buffer), bytes);
  }
  MAYPOLE_KILL_POINT("small.copied");
  board.progress(op.slot, me)
      .consumed.store(Tagged(op.generation, UINT32_MAX),
                      std::memory_order_release);
  MAYPOLE_KILL_POINT("small.consumed");
}

bool MakeNews(const Board& board, const Operation& op) {
  board.news(op.slot / 64)
      .fetch_or(uint64_t{1} << (op.slot % 64), std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("news.set");
  const bool wake = board.ClaimExecutorWake();
  MAYPOLE_KILL_POINT("news.claimed");
  return wake;
}

Announced Announce(const Board& board, uint32_t me, uint64_t cursor,
                   const Operation& op, bool negotiated, SmallPool* pool) {
  const int buffer =
      !negotiated && IsSmall(board, op) ? Contribute(board, me, op, pool) : -1;
  if (negotiated && op.urgency() != Urgency::kNone) {  // seen with the arrival
    RaiseUrgency(board, op.slot, op.generation, op.urgency());
  }
  board.Arrive(op.slot, me, op.generation, op.signature, buffer);
  Announced a;
  if (board.OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    return a;  // decided already; the mover will find it
  }
  if (!board.AllArrived(op.slot, op.generation)) {
    FailIfLeft(board, op);
    return a;
  }
  MAYPOLE_KILL_POINT("announce.complete");
  if (negotiated) {
    a.wake_executor = MakeNews(board, op);
    return a;
  }
  if (!SameSignatures(board, op)) {
    const std::string mismatch =
        DescribeMismatch(op.name, Collect(board, op.slot, op.generation));
    if (!mismatch.empty()) {
      board.Fail(op.slot, op.generation, Code::kFailedPrecondition, mismatch);
      return a;
    }
  }
  return SetGoing(board, me, cursor, op);
}

}  // namespace maypole
