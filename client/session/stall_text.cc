#include "client/session/stall_text.h"

#include <bit>

namespace maypole {
namespace {

// For example "rank 3" or "ranks 3, 5".
std::string RanksText(const BoardConfig& config, uint64_t locals) {
  std::string text = std::popcount(locals) == 1 ? "rank " : "ranks ";
  for (uint64_t rest = locals; rest != 0; rest &= rest - 1) {
    if (rest != locals) text += ", ";
    text += std::to_string(config.global_rank[std::countr_zero(rest)]);
  }
  return text;
}

// The local ranks that are still in the running operation.
uint64_t RanksInside(const Board& board, const Operation& op) {
  uint64_t inside = 0;
  for (const uint32_t i : op.set->locals) {
    const uint64_t consumed =
        board.progress(op.slot, i).consumed.load(std::memory_order_acquire);
    if (CountAt(consumed, op.generation) != UINT32_MAX) {
      inside |= uint64_t{1} << i;
    }
  }
  return inside;
}

}  // namespace

std::string StallText(const Board& board, const RankCore& core,
                      const Operation& op) {
  const BoardConfig& config = board.config();
  uint64_t late = 0;
  const WaitFor what = core.WaitsFor(op, &late);
  if (op.control == Control::kJoin) {
    return what == WaitFor::kRanks
               ? RanksText(config, late) + " of this node: not joined yet"
               : "not all ranks of the job have joined";
  }
  if (op.control == Control::kSetRequest) {
    return op.by_members ? "not all of its members have asked for it"
                         : "not all ranks of the job have asked for it";
  }
  switch (what) {
    case WaitFor::kRanks:
      return RanksText(config, late) + " of this node: not submitted yet";
    case WaitFor::kNodes:
      return "all ranks of this node have submitted it, but other nodes have "
             "not";
    case WaitFor::kAgent:
      return "the executor of this node has not answered yet";
    case WaitFor::kInput:
      return "the GPU of this rank has not written its input yet (a kernel "
             "before it on the stream runs or waits)";
    case WaitFor::kData:
      break;
  }
  const uint64_t on_gpus =
      board.slot(op.slot).on_gpus.load(std::memory_order_relaxed);
  if (TagOf(on_gpus) == op.generation) {
    return op.set->negotiated()
               ? "GPUs of several nodes execute it by NCCL, and have not ended "
                 "it (NCCL_DEBUG=INFO in the job's environment says more)"
               : "the executor of this node executes it on GPUs, which have "
                 "not "
                 "ended it (a process may keep a GPU busy)";
  }
  if (op.set->negotiated()) {
    return "it runs, but its data does not move on this node or between nodes";
  }
  return "it runs, but its data does not move; still in it: " +
         RanksText(config, RanksInside(board, op));
}

}  // namespace maypole
