// Reads and checks a node's report that an operation is present.
//
// An error means that no correct executor sends such a message.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/signature.h"
#include "coordinator/core/membership/process_sets.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// A node's report about an operation.
struct NodePresence {
  // Ranks with equal signatures; normally there is one group.
  struct Group {
    std::vector<uint32_t> ranks;
    Signature signature;
  };
  bool present = false;
  bool stands_in = false;  // not present, but was asked to stand in
  uint32_t generation = 0;
  std::vector<Group> groups;
  // By the set's ranks on the node, in the order of local ranks.
  std::vector<int64_t> first_dims;  // allgather, alltoall
  std::vector<int64_t> splits;      // alltoall: a row of the matrix per rank
  std::vector<uint32_t> gpus;       // that have the tensors; empty: the host
  bool ranks_call_nccl = false;     // each on its own of `gpus`
  std::vector<uint64_t> gpu_rooms;  // with `gpus`; allgather, alltoall
};

// "allreduce 'layer1.weight'", "allreduce 'x' of process set 2"
std::string OperationText(const proto::Identity& identity);

// Checks that the kind is known and the name's length is allowed. Does not
// check that the process set exists.
absl::Status CheckIdentity(const proto::Identity& identity);

// Reads a message of `node`, on which the set has ranks.
absl::StatusOr<NodePresence> ReadPresence(
    size_t node, const RankSet& set, const proto::Identity& identity,
    const proto::PresentOperation& message);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_
