// Fusion: which operations run together, and in which order.
//
// Purpose: groups operations that may run now into runs. A run is one pass
// through rings and network, so small tensors share its cost. buckets.h decides
// which operations wait for each other.
//
//   allreduce      fuses with allreduces of the same process set, dtype, op,
//                  device and scale factors (shapes may differ)
//   reducescatter  with reducescatters, likewise
//   broadcast      with broadcasts of the same process set, dtype, device and
//                  root
//   others         run alone
//
// Operations on GPUs fuse with others of the same communicator if the ranks
// have their tensors on the same GPUs; but reducescatters run alone there.
//
// A run has at most `threshold` bytes (each operation rounded up to
// kFusionAlignment) and kMaxRunOperations operations (kMaxGpuRunOperations if
// it has a communicator); an operation larger than the threshold runs alone. A
// threshold of 0 turns fusion off.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_FUSION_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_FUSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "common/board/urgent.h"
#include "common/wire/signature.h"
#include "coordinator/core/actions.h"

namespace maypole::coordinator {

inline constexpr uint64_t kFusionAlignment = 64;

// An operation that is present on all nodes of its process set and validated.
struct ReadyOperation {
  uint32_t id = 0;
  uint32_t generation = 0;
  Signature signature;
  // Size of the result; for a reducescatter, of the input; for an alltoall, of
  // all ranks' inputs.
  uint64_t bytes = 0;
  std::vector<int64_t> first_dims;  // allgather: by global rank
  std::vector<int64_t> splits;      // alltoall: a row for each rank of the set
  Time first_present{};
  uint64_t order = 0;  // position in the order of the first node's reports
  Urgency urgency = Urgency::kNone;
  bool inputs_sent = false;   // by all nodes, see proto PresentOperation
  uint32_t communicator = 0;  // whose GPUs execute it; 0: the host does
  // With `communicator`, except of an allreduce: the NCCL ranks of the members'
  // GPUs, in the order of the process set.
  std::vector<uint32_t> member_gpus;
};

// What the operations of one run have in common. Scale factors are compared by
// their bits, as ranks compare them (common/wire/signature.h).
using FusionKey =
    std::tuple<Kind, uint32_t /*process set*/, DType, Op, Device,
               int32_t /*root*/, uint64_t /*prescale*/, uint64_t /*postscale*/>;
// Nullopt if the operation runs alone.
std::optional<FusionKey> FusionKeyOf(const Signature& s);

// Returns runs as indices into `ready`. Every index is in exactly one run. Runs
// are in the order of their first operations, operations in that of `ready`.
std::vector<std::vector<size_t>> Fuse(std::span<const ReadyOperation> ready,
                                      uint64_t threshold);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_FUSION_H_
