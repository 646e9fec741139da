// Reported: what a node says of an operation, read from its message and
// checked.
//
// An error means that no sound executor sends this.
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

// What a node says of an operation that is present there.
struct NodePresence {
  // Ranks that agree on one signature; normally one group.
  struct Group {
    std::vector<uint32_t> ranks;
    Signature signature;
  };
  bool present = false;
  bool stands_in = false;  // not present: it was asked to stand in
  uint32_t generation = 0;
  std::vector<Group> groups;
  // By rank of the set on the node, in the order of local ranks.
  std::vector<int64_t> first_dims;  // allgather, alltoall
  std::vector<int64_t> splits;      // alltoall: for each, a row of the matrix
};

// "allreduce 'layer1.weight'", "allreduce 'x' of process set 2"
std::string OperationText(const proto::Identity& identity);

// Known numbers, a name of a sound length. Whether there is such a process set
// is another matter.
absl::Status CheckIdentity(const proto::Identity& identity);

// The message of `node`, which the set has ranks on.
absl::StatusOr<NodePresence> ReadPresence(
    size_t node, const RankSet& set, const proto::Identity& identity,
    const proto::PresentOperation& message);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_REPORTED_H_
