// GpuRun: operations that the GPUs of this node execute for its ranks, alone or
// with those of other nodes.
//
// Purpose: the core makes it, EpochGpus (worker/executor/executor_system.h)
// executes it.
//
//   ranks of one GPU        one kernel reduces their tensors; no communicator
//   ranks of several GPUs   a kernel for each GPU's ranks, then NCCL once for
//                           each GPU, then a kernel that writes the result to
//                           each rank's tensor
//
// A communicator (NCCL's word) is a group of GPUs, numbered from 0 through all
// its nodes ("NCCL rank"). The epoch numbers its communicators.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_GPU_RUN_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_GPU_RUN_H_

#include <cstdint>
#include <set>
#include <vector>

#include "common/limits.h"
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

struct GpuTensor {
  GpuMemoryId memory;
  uint64_t offset = 0;  // bytes; offset and size lie within the memory
  uint32_t gpu = 0;     // that the memory is on
};

// The GPUs that the tensors are on, ascending.
inline std::vector<uint32_t> GpusOf(const std::vector<GpuTensor>& tensors) {
  std::set<uint32_t> gpus;
  for (const GpuTensor& tensor : tensors) gpus.insert(tensor.gpu);
  return {gpus.begin(), gpus.end()};
}

inline constexpr uint32_t kNoTensor = UINT32_MAX;

struct GpuOperation {
  uint32_t slot = 0;
  uint32_t generation = 0;
  // kAllreduce: the tensors of all ranks are reduced, and the result is written
  // over each, by the rules of common/reduce/reduce.h. (With a communicator
  // NCCL adds the GPUs' results, in an order of its own.)
  // kBroadcast, with a communicator only: the root's tensor is written over
  // all others; not used by the core yet.
  Kind kind = Kind::kAllreduce;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  uint64_t elements = 0;  // of each tensor; more than 0
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
  // kBroadcast: the NCCL rank of the root's GPU; and the root's tensor in
  // `tensors`, or kNoTensor if it is on another node.
  uint32_t root = 0;
  uint32_t root_tensor = kNoTensor;
  // Of the local members, in the order of local ranks: 1 to kMaxLocalRanks.
  std::vector<GpuTensor> tensors;
};

// Communicators of an epoch: the coordinator's, with GPUs of several nodes,
// have the numbers 1 to kMaxCommunicators; those of this node alone the others.
inline constexpr uint32_t kMaxGpuCommunicators =
    kMaxCommunicators + kMaxLocalCommunicators;

struct GpuRun {
  uint32_t communicator = 0;             // 0: none, all tensors are on one GPU
  std::vector<GpuOperation> operations;  // 1 to kMaxRunOperations
};

// This node's part of a communicator. The GPUs have the NCCL ranks first,
// first + 1, ..., in this order.
struct GpuCommunicator {
  uint32_t number = 0;  // in the epoch, from 1
  uint32_t size = 0;    // GPUs of all nodes
  uint32_t first = 0;
  std::vector<uint32_t> gpus;  // the executor's numbers, ascending
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_GPU_RUN_H_
