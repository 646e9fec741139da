// NodeTree: a node's place in the tree of a large job's nodes, in which each
// node passes a message for all nodes on to only a few others.
//
// The parent of node i is (i - 1) / fan_out; node 0 is the root.
//
// Thread contract: a value.
#ifndef MAYPOLE_WORKER_CORE_NODE_TREE_H_
#define MAYPOLE_WORKER_CORE_NODE_TREE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace maypole::worker {

struct NodeTree {
  // fan_out: at least 1.
  NodeTree(uint32_t self, uint32_t nodes, uint32_t fan_out) {
    if (self != 0) parent = (self - 1) / fan_out;
    const uint64_t first = uint64_t{self} * fan_out + 1;
    for (uint64_t i = first; i < std::min<uint64_t>(first + fan_out, nodes);
         ++i) {
      children.push_back(static_cast<uint32_t>(i));
    }
  }

  std::optional<uint32_t> parent;  // none: this is the root
  std::vector<uint32_t> children;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_NODE_TREE_H_
