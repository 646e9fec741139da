// ExchangePlan: who sends what to whom, so that a chunk gets around.
//
// Purpose: the algorithms of a Backend, as plain data. A plan is a node's own
// part: stages, which it goes through in order. In a stage it sends parts of
// the chunk, receives others, and, when all of them are there, reduces some of
// them. All nodes of the chunk make their plans from the same chunk, and the
// plans fit together: what a node sends in a stage, the other one expects, with
// the same size and in the same order.
//
//   ExchangePlan plan = PlanFor(work, self, levels);
//   // post all receives; then for each stage: send, await the receives, reduce
//
// A reduction (docs/wire.md) goes through levels. In a level of f nodes, groups
// of f nodes reduce what they hold: either each node of a group ends up with
// the f-th part of it, which it has reduced over the group, and the parts are
// gathered after the later levels (reduce-scatter and allgather); or all nodes
// of the group send all of it to one another and reduce it (`exchanges_all`),
// which takes one message less in a row. With one level of all nodes the chunk
// is reduced in the order of the nodes; levels of two are recursive halving and
// doubling (Thakur, Rabenseifner, Gropp: Optimization of Collective
// Communication Operations in MPICH, 2005). In each case all nodes get the same
// bits. Half precision is rounded once in each level.
//
// The members of a group in the first level follow one another in the order of
// the nodes: most data travels there.
//
// If the chunk scatters, there is one level; its segments say which node needs
// what, and nothing is gathered. Without a reduction there is one stage.
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
    bool last = true;  // nothing is reduced further: `Work.finish` applies
  };

  std::vector<Transfer> sends;     // offsets in the chunk
  std::vector<Transfer> receives;  // in the inbox if `reduces`, else the chunk
  bool reduces = false;
  // The reductions overwrite what the stage sends.
  bool overwrites = false;
  std::vector<Reduction> reductions;
};

struct ExchangePlan {
  std::vector<Stage> stages;
  uint64_t inbox_bytes = 0;
};

struct Level {
  uint32_t nodes = 0;
  bool exchanges_all = false;

  bool operator==(const Level&) const = default;
};

// `work.nodes` must not be empty. The nodes of the levels, multiplied, are
// those of the work, and no level follows one that exchanges all unless it
// does, too. Without levels: one of all nodes.
ExchangePlan PlanFor(const Work& work, uint32_t self,
                     const std::vector<Level>& levels = {});

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_EXCHANGE_PLAN_H_
