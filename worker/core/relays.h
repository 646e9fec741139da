// Relays: how the executors of a large job pass on what the coordinator sends
// to all nodes (docs/relays.md).
//
// Purpose: knows this node's neighbours in the tree, and when the whole tree
// can be reached: a node tells its parent so when it and all nodes below it
// can.
//
//   Relays relays(self, nodes, fan_out);
//   if (relays.OnReady(self)) ...tell the parent or, at the root, the
//   coordinator
//   if (relays.OnReady(child)) ...
//   ...send to relays.tree().children what came from the parent...
//
// Thread contract: not synchronized; no I/O.
#ifndef MAYPOLE_WORKER_CORE_RELAYS_H_
#define MAYPOLE_WORKER_CORE_RELAYS_H_

#include <cstdint>
#include <set>

#include "worker/core/node_tree.h"

namespace maypole::worker {

class Relays {
 public:
  Relays(uint32_t self, uint32_t nodes, uint32_t fan_out)
      : tree_(self, nodes, fan_out),
        awaited_(tree_.children.begin(), tree_.children.end()) {
    awaited_.insert(self);
  }

  // This node, or a child with all nodes below it, can be reached. Returns true
  // if that was the last one.
  bool OnReady(uint32_t node) {
    return awaited_.erase(node) > 0 && awaited_.empty();
  }
  bool ready() const { return awaited_.empty(); }
  const NodeTree& tree() const { return tree_; }

 private:
  const NodeTree tree_;
  std::set<uint32_t> awaited_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_RELAYS_H_
