// GpuRun: operations that the GPUs of this node execute for its ranks, alone or
// with those of other nodes.
//
// Purpose: the executor's core makes it, or a rank that the executor orders to;
// EpochGpus (epoch_gpus.h) executes it.
//
//   ranks of one GPU        one kernel reduces their tensors; no communicator
//   ranks of several GPUs   a kernel for each GPU's ranks, then NCCL once for
//                           each GPU, then a kernel that writes the result to
//                           each rank's tensor
//
// A communicator (NCCL's word) is a group of GPUs, numbered from 0 across all
// its nodes ("NCCL rank"). The epoch numbers its communicators.
//
// Thread contract: values.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_RUN_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_RUN_H_

#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

#include "common/limits.h"
#include "common/types.h"

namespace maypole {

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

// The result is written over the tensor.
inline constexpr uint64_t kInPlace = UINT64_MAX;

struct GpuTensor {
  // Number 0: memory of this process, and `offset` and `result` are addresses
  // (ranks that call NCCL themselves).
  GpuMemoryId memory;
  uint64_t offset = 0;  // bytes; offset and size lie within the memory
  uint32_t gpu = 0;     // the GPU with the memory
  // Where the result is written, in the same memory; it does not overlap the
  // tensor, which is not changed (except that a reducescatter uses it to reduce
  // and scale what it must before NCCL, or for several ranks of a GPU).
  // Allgather and alltoall never work in place.
  uint64_t result = kInPlace;
  // Number 0: events of this process (CUevent) or null. The operation waits for
  // the first, which was recorded before the run began, and the second is
  // recorded after it.
  void* ready = nullptr;
  void* ran = nullptr;
};

// The GPUs that the tensors are on, ascending.
inline std::vector<uint32_t> GpusOf(const std::vector<GpuTensor>& tensors) {
  std::set<uint32_t> gpus;
  for (const GpuTensor& tensor : tensors) gpus.insert(tensor.gpu);
  return {gpus.begin(), gpus.end()};
}

// The GPU of each tensor.
inline std::vector<uint32_t> GpuOfEach(const std::vector<GpuTensor>& tensors) {
  std::vector<uint32_t> gpus;
  for (const GpuTensor& tensor : tensors) gpus.push_back(tensor.gpu);
  return gpus;
}

inline constexpr uint32_t kNoTensor = UINT32_MAX;

// A member of the process set, of this or another node.
struct GpuMember {
  uint32_t gpu = 0;  // NCCL rank of its GPU; 0 without a communicator
  uint32_t tensor = kNoTensor;  // in `tensors`, if it is of this node
};

// What the kinds do, for the members 0 .. n - 1 of the process set:
//
//   allreduce      The tensors are reduced, by the rules of
//                  common/reduce/reduce.h; each gets the result. (With a
//                  communicator NCCL adds the GPUs' results, in an order of its
//                  own.)
//   broadcast      Each tensor gets the root's.
//   reducescatter  As allreduce, but member i gets counts[i] elements only,
//                  those after counts[0] + ... + counts[i - 1]. In place: they
//                  are where they lie in the tensor; what the rest of it
//                  contains is not defined.
//   allgather      Member i's tensor has counts[i] elements. Each result: all
//                  tensors one after the other.
//   alltoall       Member i sends counts[i * n + j] elements to member j: those
//                  after what it sends to the members before j. Result: what
//                  the members have sent, one after the other.
struct GpuOperation {
  uint32_t slot = 0;
  uint32_t generation = 0;
  Kind kind = Kind::kAllreduce;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  // Elements of each tensor; more than 0. Allgather and alltoall: see `counts`.
  uint64_t elements = 0;
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
  // The position of the broadcast's root in `members`.
  uint32_t root = 0;
  // The members of the process set, by rank; not needed for an allreduce.
  std::vector<GpuMember> members;
  std::vector<uint64_t> counts;  // reducescatter, allgather, alltoall
  // The tensors of the local members, in the order of local ranks: 1 to
  // kMaxLocalRanks.
  std::vector<GpuTensor> tensors;
};

// Communicators of an epoch: the coordinator's, with GPUs of several nodes,
// have the numbers 1 to kMaxCommunicators; those of this node alone have the
// others.
inline constexpr uint32_t kMaxGpuCommunicators =
    kMaxCommunicators + kMaxLocalCommunicators;

// When a run reached each stage, in nanoseconds of CLOCK_MONOTONIC; 0: it has
// not.
struct GpuRunTimes {
  int64_t ordered = 0;   // EpochGpus::Run()
  int64_t begun = 0;     // its work is put on the streams
  int64_t launched = 0;  // NCCL's work is on the streams
  int64_t ended = 0;
};

inline int64_t GpuRunNow() {
  return std::chrono::steady_clock::now().time_since_epoch() /
         std::chrono::nanoseconds(1);
}

struct GpuRun {
  uint32_t communicator = 0;             // 0: none, all tensors are on one GPU
  std::vector<GpuOperation> operations;  // 1 to kMaxRunOperations
  GpuRunTimes times = {};                // set by what executes it
};

// This node's part of a communicator. The GPUs have the NCCL ranks first,
// first + 1, ..., in this order.
struct GpuCommunicator {
  uint32_t number = 0;  // in the epoch, from 1
  uint32_t size = 0;    // GPUs of all nodes
  uint32_t first = 0;
  std::vector<uint32_t> gpus;  // the executor's numbers, ascending
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_RUN_H_
