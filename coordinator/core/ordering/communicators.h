// Communicators: which GPUs work together through NCCL, in one epoch.
//
// Purpose: an operation whose tensors are on GPUs on all its nodes runs there
// if its results have room. The GPUs' communicator is made when an operation
// first needs it; operations of any process set that have their tensors on the
// same GPUs use the same one. If ranks call NCCL themselves, it also belongs to
// the process set: each member is an NCCL rank. If only some of them do, the
// operation runs on the host.
//
//   Communicators communicators(&nodes);
//   communicators.Enable();             // all nodes have the same NCCL
//   communicators.Choose(op, &ready);   // sets ready.communicator
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
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/admin.pb.h"

namespace maypole::coordinator {

struct Communicator {
  struct Part {
    size_t node = 0;
    uint32_t first = 0;          // NCCL rank of gpus[0]
    std::vector<uint32_t> gpus;  // the node's numbers, ascending; or by rank
  };
  uint32_t number = 0;  // from 1
  uint32_t size = 0;    // GPUs of all nodes
  // By node; at least one, or none if no remaining node has a part.
  std::vector<Part> parts;
  const RankSet* ranks = nullptr;  // that call NCCL themselves; null: executors
  bool has_id = false;             // its first node has made NCCL's unique id
};

class Communicators {
 public:
  // `nodes` must outlive this object.
  explicit Communicators(EpochNodes* nodes) : nodes_(*nodes) {}

  // Nothing runs on GPUs unless it is enabled.
  void Enable() { enabled_ = true; }
  // Decides where an operation that is present on all its nodes runs; on GPUs,
  // sets its communicator and member_gpus. It does not run on GPUs if two nodes
  // have their tensors on the same GPU, as executors of one machine may: NCCL
  // refuses to connect a GPU with itself, unless its processes are on different
  // hosts (proto::RankGpu::nccl_host). Sends a new communicator to its nodes.
  void Choose(const NegotiatedOperation& op, ReadyOperation* ready);

  // Which GPU the node's executor means by a number; GPUs that are a rank's own
  // (GpuSharing::kOwn) are numbered separately. An error of either method means
  // that the executor violates the protocol.
  absl::Status OnRankGpu(size_t node, const proto::RankGpu& message);
  absl::Status OnId(size_t node, const proto::CommunicatorId& message);

  // Takes over another coordinator's communicators. `states`: by node; may be
  // null; CheckNodeState() has checked them. `sets` must know their process
  // sets.
  void Restore(const std::vector<const proto::NodeState*>& states,
               const ProcessSets& sets);
  // Sends the node the communicators and ids that it lacks.
  void Resend(size_t node, const std::vector<const proto::NodeState*>& states);
  void FillStatus(proto::RankStatus* rank) const;

 private:
  using Gpus = std::vector<std::pair<size_t /*node*/, std::vector<uint32_t>>>;

  // `ranks`: as in Communicator.
  const Communicator* Of(const RankSet* ranks, const Gpus& gpus);
  bool AnyIsShared(bool own, const Gpus& gpus);

  // What NCCL distinguishes GPUs by.
  struct Gpu {
    std::string uuid;
    uint64_t nccl_host = 0;
    auto operator<=>(const Gpu&) const = default;
  };

  // Null if there is no such communicator.
  Communicator* Get(uint32_t number);
  void Send(const Communicator& c, const Communicator::Part& part);

  EpochNodes& nodes_;
  bool enabled_ = false;
  std::map<std::tuple<size_t /*node*/, bool /*own*/, uint32_t>, Gpu> known_;
  // By rank and UUID of the GPU: the last message.
  std::map<std::pair<uint32_t, std::string>, proto::RankGpu> rank_gpus_;
  bool warned_of_sharing_ = false;
  std::map<std::pair<const RankSet*, Gpus>, uint32_t> numbers_;
  std::vector<Communicator> all_;  // by number - 1
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_COMMUNICATORS_H_
