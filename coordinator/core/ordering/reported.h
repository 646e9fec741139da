// Reads and checks a node's report that an operation is present.
//
// An error means that no correct executor sends such a message.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/signature.h"
#include "coordinator/core/membership/process_sets.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A node's report about an operation. Most reports say only that all ranks of
// the set on the node have submitted the same as the other nodes' ranks; at
// 1,000 nodes each operation has 1,000 reports, so these take little memory.
struct NodePresence {
  // Ranks with equal signatures; normally there is one group.
  struct Group {
    std::vector<uint32_t> ranks;
    Signature signature;
  };
  struct Details {
    std::vector<Group> groups;
    // By the set's ranks on the node, in the order of local ranks.
    std::vector<int64_t> first_dims;  // allgather, alltoall
    std::vector<int64_t> splits;      // alltoall: a row of the matrix per rank
    std::vector<uint32_t> gpus;       // that have the tensors; empty: the host
    bool ranks_call_nccl = false;     // each on its own GPU of `gpus`
    std::vector<uint64_t> gpu_rooms;  // with `gpus`; allgather, alltoall
  };
  bool present = false;
  bool stands_in = false;  // not present, but was asked to stand in
  uint32_t generation = 0;
  bool inputs_sent = false;  // see proto PresentOperation
  // Null: there is one group, of all of the set's ranks on the node, with the
  // operation's common signature, and nothing else.
  std::unique_ptr<const Details> details;

  const std::vector<uint32_t>& gpus() const {
    static const std::vector<uint32_t> none;
    return details == nullptr ? none : details->gpus;
  }
  bool ranks_call_nccl() const {
    return details != nullptr && details->ranks_call_nccl;
  }
};

// "allreduce 'layer1.weight'", "allreduce 'x' of process set 2"
std::string OperationText(const proto::Identity& identity);

// Checks that the kind is known and the name's length is allowed. Does not
// check that the process set exists.
absl::Status CheckIdentity(const proto::Identity& identity);
// Checks that, too, and finds the process set; it may have been removed.
absl::StatusOr<const RankSet*> SetOf(const proto::Identity& identity,
                                     const ProcessSets& sets);

// Reads a message of `node`, on which the set has ranks. `last` is the
// signature of the operation's last run. `common` is the signature of nodes
// without details; if there is none yet, it is set.
absl::StatusOr<NodePresence> ReadPresence(
    size_t node, const RankSet& set, const proto::Identity& identity,
    const proto::PresentOperation& message,
    const std::optional<Signature>& last, std::optional<Signature>* common);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_
