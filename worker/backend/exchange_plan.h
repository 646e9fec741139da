// ExchangePlan: who sends what to whom, so that a chunk gets around.
//
// Purpose: the algorithms of a Backend, as plain data. A plan is a node's own
// part: stages, which it goes through in order. In a stage it sends parts of
// the chunk, receives others, and, when all of them are there, reduces some of
// them. All nodes of the chunk make their plans from the same chunk, and the
// plans fit together: what a node sends in a stage, the other one expects, with
// the same size and in the same order.
//
//   ExchangePlan plan = PlanFor(work, self);
//   // post all receives; then for each stage: send, await the receives, reduce
//
// A reduction (docs/board.md) has two stages. First each node sends segment i
// to the i-th node, which reduces its own segment over all nodes, in their
// order; then each sends its result to all others. So one node computes each
// segment: all get the same bits, and half precision is rounded once. If the
// chunk scatters, its segments say which node needs what, and the second stage
// is left out. Without a reduction there is one stage.
//
// A receive may overwrite what this node has sent to the same node in an
// earlier stage: its data is sent only after that was received.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_WORKER_BACKEND_EXCHANGE_PLAN_H_
#define MAYPOLE_WORKER_BACKEND_EXCHANGE_PLAN_H_

#include <cstdint>
#include <vector>

#include "worker/backend/backend.h"

namespace maypole::worker {

struct Transfer {
  uint32_t node = 0;  // the other one
  uint64_t offset = 0;
  uint64_t bytes = 0;  // not 0

  bool operator==(const Transfer&) const = default;
};

struct Stage {
  // Inputs of `output`: the own one, there, and one of each other node, in the
  // inbox. The own one is the `place`-th.
  struct Reduction {
    uint64_t output = 0;  // offset in the chunk
    uint64_t bytes = 0;
    std::vector<uint64_t> inputs;  // offsets in the inbox
    size_t place = 0;
  };

  std::vector<Transfer> sends;     // offsets in the chunk
  std::vector<Transfer> receives;  // in the inbox if `reduces`, else the chunk
  bool reduces = false;
  std::vector<Reduction> reductions;
};

struct ExchangePlan {
  std::vector<Stage> stages;
  uint64_t inbox_bytes = 0;
};

// `work.nodes` must not be empty.
ExchangePlan PlanFor(const Work& work, uint32_t self);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_EXCHANGE_PLAN_H_
