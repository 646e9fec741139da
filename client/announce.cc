#include "client/announce.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/small.h"
#include "common/kill_point.h"
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

void WakeOthers(const Board& board, uint32_t me) {
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    if (i != me) board.WakeRank(i);
  }
}

Announced PlaceInLine(const Board& board, uint32_t me, uint64_t cursor,
                      const Operation& op) {
  Announced a;
  a.ticket = board.PlaceTicket(op.slot, op.generation, cursor);
  MAYPOLE_KILL_POINT("announce.placed");
  if (op.awaited) {
    WakeOthers(board, me);
  } else {
    board.WakeRanks();
  }
  return a;
}

// All local ranks are there and agree.
Announced SetGoing(const Board& board, uint32_t me, uint64_t cursor,
                   Operation& op) {
  const Brought brought = WhatWasBrought(board, me, op);
  if (brought.next == Brought::Next::kLargeWay) {
    return PlaceInLine(board, me, cursor, op);
  }
  // Another last arriver is at it, or an abort has come.
  if (brought.next == Brought::Next::kOther ||
      !board.ClaimReduction(op.slot, op.generation)) {
    return Announced();
  }
  MAYPOLE_KILL_POINT("announce.claimed");
  const SmallResult result = CarryOut(board, me, op, brought);
  MAYPOLE_KILL_POINT("announce.reduced");
  if (!board.CommitSmall(op.slot, op.generation, result)) return Announced();
  MAYPOLE_KILL_POINT("announce.committed");
  // What it gathers is memory to be found first, and the mover's business.
  if (op.signature.kind == Kind::kAllgather) {
    return PlaceInLine(board, me, cursor, op);
  }
  Announced a;
  a.done = DeliverSmall(board, me, op, result).ok();
  MAYPOLE_KILL_POINT("announce.delivered");
  a.ticket = board.PlaceTicket(op.slot, op.generation, cursor);
  MAYPOLE_KILL_POINT("announce.small_placed");
  WakeOthers(board, me);
  return a;
}

}  // namespace

bool MakeNews(const Board& board, const Operation& op) {
  board.news(op.slot / 64)
      .fetch_or(uint64_t{1} << (op.slot % 64), std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("news.set");
  const bool wake = board.ClaimExecutorWake();
  MAYPOLE_KILL_POINT("news.claimed");
  return wake;
}

Announced Announce(const Board& board, uint32_t me, uint64_t cursor,
                   Operation& op, bool negotiated, SmallPool* pool) {
  // An operation that cannot come to be is not arrived at: the rank could go on
  // to the next generations and overwrite what slower ones still read.
  FailIfLeft(board, op);
  if (board.OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    return Announced();  // the mover will find it
  }
  const int buffer = negotiated ? kNoBuffer : Contribute(board, me, op, pool);
  if (negotiated && op.urgency() != Urgency::kNone) {  // seen with the arrival
    RaiseUrgency(board, op.slot, op.generation, op.urgency());
  }
  board.Arrive(op.slot, me, op.generation, op.signature, buffer, op.arena);
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
