// FindPlaces: where an operation's tensors and results are on the GPUs.
//
//   StatusOr<std::vector<TensorPlace>> places =
//       FindPlaces(operation, communicator, memories);
//
// Thread contract: a pure function.
//
// Hostility: the tensors' numbers come from ranks. Whatever they are, places
// lie in the ranks' own memories; counts and members are the core's.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_TENSOR_PLACES_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_TENSOR_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/gpu/runner/gpu_memories.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/status_or.h"

namespace maypole {

// Addresses; 0 if there is nothing to read or write.
struct TensorPlace {
  size_t gpu = 0;  // in the communicator's part
  uint64_t tensor = 0;
  uint64_t result = 0;  // a reducescatter's: where the member's elements are
};

// The places of operation.tensors. The operation must have passed
// CheckOperation(). An error if it does not fit the communicator: exactly the
// communicator's GPUs here must have tensors, and the members must be where the
// operation says.
StatusOr<std::vector<TensorPlace>> FindPlaces(
    const GpuOperation& operation, const GpuCommunicator& communicator,
    const GpuMemories& memories);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_TENSOR_PLACES_H_
