// Relays: how the executors of a large job pass on what the coordinator sends
// to all nodes (docs/relays.md).
//
// Purpose: knows this node's neighbours in the tree, and when the whole tree
// can be reached. A node tells its parent when it and all nodes below it can be
// reached; the root tells the coordinator, which then uses the tree.
//
//   Relays relays(info, &output);
//   relays.OnReady(info.node_index);    // this node can be reached
//   relays.OnReady(child);              // reported by a child
//   relays.OnRelayed(message);
//
// Thread contract: not synchronized; no I/O.
#ifndef MAYPOLE_WORKER_CORE_RELAYS_H_
#define MAYPOLE_WORKER_CORE_RELAYS_H_

#include <cstdint>
#include <optional>
#include <set>

#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/node_tree.h"

namespace maypole::worker {

class Relays {
 public:
  // `output` must outlive this object.
  Relays(const EpochInfo& info, EpochOutput* output);

  // This node, or a child with all nodes below it, can be reached.
  void OnReady(uint32_t node);
  // Passes the message on, and takes this node's copy.
  void OnRelayed(const proto::Relayed& relayed);
  // A coordinator that has replaced another does not know about the tree.
  void OnRecovered();

 private:
  void ReportReady();

  const uint64_t epoch_;
  const uint32_t self_;
  EpochOutput& output_;
  std::optional<NodeTree> tree_;  // none: messages are not passed on
  std::set<uint32_t> awaited_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_RELAYS_H_
