#include "client/announce.h"

#include <string>
#include <utility>
#include <vector>

namespace maypole {
namespace {

// The signatures of generation g by global rank. Empty if a rank has gone on to
// a newer one: then somebody else has set g going long ago.
std::vector<std::pair<int, Signature>> Collect(const Board& board,
                                               uint32_t slot, uint32_t g) {
  const BoardConfig& config = board.config();
  std::vector<std::pair<int, Signature>> all;
  for (uint32_t i = 0; i < config.local_size; ++i) {
    all.emplace_back(config.global_rank[i], board.SignatureOf(slot, i));
  }
  for (uint32_t i = 0; i < config.local_size; ++i) {
    if (board.arrival(slot, i).generation.load(std::memory_order_acquire) !=
        g) {
      return {};
    }
  }
  return all;
}

// Arrival and leaving are both published before the other is looked at (here
// and in the executor), so at least one side sees both.
bool FailIfLeft(const Board& board, const Operation& op) {
  if (board.header().left_count.load(std::memory_order_seq_cst) == 0) {
    return false;
  }
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    const bool left = board.rank(i).state.load(std::memory_order_seq_cst) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const bool arrived =
        board.arrival(op.slot, i).generation.load(std::memory_order_seq_cst) >=
        op.generation;
    if (left && !arrived) {
      board.Fail(op.slot, op.generation, Code::kAborted,
                 op.Title() + ": " + board.header().left_text);
      return true;
    }
  }
  return false;
}

}  // namespace

bool Announce(const Board& board, uint32_t me, uint64_t cursor,
              const Operation& op, bool negotiated) {
  board.Arrive(op.slot, me, op.generation, op.signature);
  if (board.OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    return false;  // failed already; the mover will find it
  }
  if (!board.AllArrived(op.slot, op.generation)) {
    FailIfLeft(board, op);
    return false;
  }
  if (negotiated) {
    board.news(op.slot / 64)
        .fetch_or(uint64_t{1} << (op.slot % 64), std::memory_order_seq_cst);
    return board.ClaimExecutorWake();
  }
  const auto all = Collect(board, op.slot, op.generation);
  if (all.empty()) return false;
  const std::string mismatch = DescribeMismatch(op.name, all);
  if (!mismatch.empty()) {
    board.Fail(op.slot, op.generation, Code::kFailedPrecondition, mismatch);
    return false;
  }
  board.PlaceTicket(op.slot, cursor);
  board.WakeRanks();
  return false;
}

}  // namespace maypole
