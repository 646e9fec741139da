// CollectiveSteps: what one GPU does for one operation of a run with a
// communicator.
//
// Purpose: an operation takes three steps on each GPU of the node:
//
//   before      a kernel reduces the tensors of the GPU's ranks into the first
//               of them, if there are several or they are prescaled
//   NCCL        in place on one tensor
//   after       a kernel divides and scales that tensor, and writes it to all;
//               or copies it to the others, if there is nothing to compute
//
// Thread contract: pure functions.
//
// Invariants: the rules are those of common/reduce/reduce.h, with these
// differences: what NCCL does, it does in its own order, and rounds as it does;
// whether the minimum of a NaN and a number is a NaN is NCCL's decision.
#ifndef MAYPOLE_WORKER_GPU_NCCL_COLLECTIVE_STEPS_H_
#define MAYPOLE_WORKER_GPU_NCCL_COLLECTIVE_STEPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gpu/nccl/nccl_types.h"
#include "worker/core/operations/gpu_run.h"
#include "worker/gpu/gpu_queue.h"

namespace maypole::worker {

class CollectiveSteps {
 public:
  // `tensors`: addresses of the operation's tensors on this GPU, at least one.
  // `source`: that of a broadcast's root if it is among them, else 0. An error
  // if NCCL cannot do the operation.
  static absl::StatusOr<CollectiveSteps> Make(const GpuOperation& operation,
                                              std::vector<uint64_t> tensors,
                                              uint64_t source);

  absl::Status EnqueueBefore(GpuQueue& queue) const;
  absl::Status EnqueueAfter(GpuQueue& queue) const;

  // NCCL's arguments.
  Kind kind() const { return operation_.kind; }
  void* buffer() const { return reinterpret_cast<void*>(buffer_); }
  uint64_t count() const { return count_; }
  nccl::ncclDataType_t type() const { return type_; }
  nccl::ncclRedOp_t op() const { return op_; }
  int root() const { return static_cast<int>(operation_.root); }

 private:
  CollectiveSteps() = default;

  // Of `operation_`, its tensors are not used.
  GpuOperation operation_;
  std::vector<uint64_t> tensors_;
  uint64_t buffer_ = 0;
  uint64_t count_ = 0;
  nccl::ncclDataType_t type_ = nccl::ncclUint8;
  nccl::ncclRedOp_t op_ = nccl::ncclSum;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_NCCL_COLLECTIVE_STEPS_H_
