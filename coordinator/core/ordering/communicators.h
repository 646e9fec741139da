// Communicators: which GPUs reduce together by NCCL, in one epoch.
//
// Purpose: an operation whose tensors are on GPUs of all its nodes runs there.
// The GPUs' communicator is made when an operation first needs it; operations
// of any process set that have their tensors on the same GPUs use the same one.
//
//   const uint32_t number = communicators.Find(op);     // 0: on the host
//   for (const Communicator& c : communicators.TakeNew()) { ... tell its nodes
//   }
//
// Thread contract: not synchronized; pure.
//
// Invariants: at most kMaxCommunicators; operations on more groups of GPUs run
// on the host. A communicator is never forgotten: connecting it takes NCCL much
// longer than any operation.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_COMMUNICATORS_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_COMMUNICATORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/core/ordering/presence.h"

namespace maypole::coordinator {

struct Communicator {
  struct Part {
    size_t node = 0;
    uint32_t first = 0;          // NCCL rank of gpus[0]
    std::vector<uint32_t> gpus;  // the node's numbers, ascending
  };
  uint32_t number = 0;      // from 1
  uint32_t size = 0;        // GPUs of all nodes
  std::vector<Part> parts;  // by node; at least one
  bool has_id = false;      // its first node has made NCCL's unique id
};

class Communicators {
 public:
  // Nothing runs on GPUs unless it is enabled.
  void Enable() { enabled_ = true; }

  // The operation is present on all its nodes.
  uint32_t Find(const NegotiatedOperation& op);
  // Those that Find() has made since the last call.
  std::vector<Communicator> TakeNew() { return std::exchange(new_, {}); }
  // Null if there is no such communicator.
  Communicator* Get(uint32_t number);

 private:
  using Gpus = std::vector<std::pair<size_t /*node*/, std::vector<uint32_t>>>;

  bool enabled_ = false;
  std::map<Gpus, uint32_t> numbers_;
  std::vector<Communicator> all_;  // by number - 1
  std::vector<Communicator> new_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_COMMUNICATORS_H_
