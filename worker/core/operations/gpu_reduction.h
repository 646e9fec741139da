// GpuReduction: an allreduce that a GPU executes for the ranks of a node.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_GPU_REDUCTION_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_GPU_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "common/types.h"

namespace maypole::worker {

// A rank's memory: see session::GpuMemoryRequest.
struct GpuMemoryId {
  uint32_t local = 0;   // the rank
  uint32_t number = 0;  // the rank's number of it, from 1

  auto operator<=>(const GpuMemoryId&) const = default;
};

struct OpenedGpuMemory {
  uint32_t gpu = 0;             // number of its GPU, below kMaxGpus
  uint8_t ipc_handle[64] = {};  // GpuSharing::kIpcHandle only
};

struct GpuRange {
  GpuMemoryId memory;
  uint64_t offset = 0;  // bytes; offset and size lie within the memory
};

// Reduces the tensors of `tensors`, in their order, and writes the result over
// each of them, by the rules of common/reduce/reduce.h.
struct GpuReduction {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t gpu = 0;  // that has all the memories
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  uint64_t elements = 0;  // of each tensor; more than 0
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
  std::vector<GpuRange> tensors;  // of the local members; 1 to kMaxLocalRanks
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_GPU_REDUCTION_H_
