// Communicators: which GPUs work together by NCCL, in one epoch.
//
// Purpose: an operation whose tensors are on GPUs of all its nodes runs there,
// if its results have room.
// The GPUs' communicator is made when an operation first needs it; operations
// of any process set that have their tensors on the same GPUs use the same one.
// If ranks call NCCL themselves, it belongs to the process set, too: each
// member is an NCCL rank. If only some of them do, the operation runs on the
// host.
//
//   communicators.Find(op, &ready);     // sets ready.communicator
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
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/ordering/presence.h"

namespace maypole::coordinator {

struct Communicator {
  struct Part {
    size_t node = 0;
    uint32_t first = 0;          // NCCL rank of gpus[0]
    std::vector<uint32_t> gpus;  // the node's numbers, ascending; or by rank
  };
  uint32_t number = 0;             // from 1
  uint32_t size = 0;               // GPUs of all nodes
  // By node; at least one. None: no node that is left has a part.
  std::vector<Part> parts;
  const RankSet* ranks = nullptr;  // that call NCCL themselves; null: executors
  bool has_id = false;             // its first node has made NCCL's unique id
};

class Communicators {
 public:
  // Takes over those that another coordinator has made. `states`: by node; may
  // be null. `sets` must know their process sets.
  void Restore(const std::vector<const proto::NodeState*>& states,
               const ProcessSets& sets);
  const std::vector<Communicator>& all() const { return all_; }
  // Nothing runs on GPUs unless it is enabled.
  void Enable() { enabled_ = true; }

  // Which GPU the executor of the node means by its number; GPUs that are a
  // rank's own (GpuSharing::kOwn) have numbers of their own. An error if the
  // number meant another GPU before.
  absl::Status NoteGpu(size_t node, const proto::RankGpu& gpu);

  // Sets where the operation runs, which is present on all its nodes: its
  // communicator and member_gpus, if that is on GPUs. It is not if two nodes
  // have their tensors on the same GPU, as executors of one machine may: NCCL
  // refuses to connect a GPU with itself, unless its processes are on different
  // hosts (proto::RankGpu::nccl_host).
  void Find(const NegotiatedOperation& op, ReadyOperation* ready);
  // A GPU because of which Find() has chosen the host, once.
  struct SharedGpu {
    size_t node = 0;
    size_t other = 0;
    std::string uuid;
  };
  std::optional<SharedGpu> TakeShared();
  // Those that Find() has made since the last call.
  std::vector<Communicator> TakeNew() { return std::exchange(new_, {}); }
  // Null if there is no such communicator.
  Communicator* Get(uint32_t number);

 private:
  using Gpus = std::vector<std::pair<size_t /*node*/, std::vector<uint32_t>>>;

  // `ranks`: as in Communicator.
  const Communicator* Of(const RankSet* ranks, const Gpus& gpus);
  bool AnyIsShared(bool own, const Gpus& gpus);

  // What NCCL tells GPUs apart by.
  struct Gpu {
    std::string uuid;
    uint64_t nccl_host = 0;
    auto operator<=>(const Gpu&) const = default;
  };

  bool enabled_ = false;
  std::map<std::tuple<size_t /*node*/, bool /*own*/, uint32_t>, Gpu> known_;
  std::optional<SharedGpu> shared_;
  bool shared_told_ = false;
  std::map<std::pair<const RankSet*, Gpus>, uint32_t> numbers_;
  std::vector<Communicator> all_;  // by number - 1
  std::vector<Communicator> new_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_COMMUNICATORS_H_
