// CollectiveSteps: what one GPU does for one operation.
//
// Purpose: an operation takes these steps on each GPU of the node:
//
//   before      a kernel reduces the tensors of the GPU's ranks into one, if
//               there are several or they are prescaled
//   NCCL        calls, on one tensor or result of the GPU
//   after       kernels divide and scale what was reduced, and write it to all
//               results of the GPU; what needs no more computing is copied
//               there
//
// A run without a communicator has no calls of NCCL's; one kernel then does all
// of a reduction.
//
//   StatusOr<std::vector<CollectiveSteps>> steps =
//       MakeSteps(operation, communicator, memories);    // of each GPU
//   Status s = (*steps)[0].EnqueueBefore(queue);
//   ...                                                  // NCCL's calls
//   s = (*steps)[0].EnqueueAfter(queue);
//
// Thread contract: values and pure functions.
//
// Invariants: the rules are those of common/reduce/reduce.h, with these
// differences: NCCL reduces in its own order and with its own rounding; NCCL
// also decides whether the minimum of a NaN and a number is a NaN. An unscaled
// average of floats over as many ranks as GPUs is NCCL's own, which multiplies
// before it adds. The calls of all GPUs of a communicator match, because each
// node derives them from the same members and counts.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_STEPS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_STEPS_H_

#include <cstdint>
#include <vector>

#include "common/gpu/kernels/kernels.h"
#include "common/gpu/runner/gpu_memories.h"
#include "common/gpu/runner/gpu_queue.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/nccl_call.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/types.h"

namespace maypole {

// A kernel's work: see cuda::Reduction.
struct ReduceStep {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  std::vector<uint64_t> inputs;
  std::vector<uint64_t> outputs;
  uint64_t elements = 0;
  double prescale = 1.0;
  int64_t divisor = 1;
  double postscale = 1.0;
};

struct CollectiveSteps {
  // Events that the first step waits for, and that are recorded after the last.
  std::vector<cuda::CUevent> ready;
  std::vector<cuda::CUevent> ran;
  std::vector<ReduceStep> before;
  std::vector<NcclCall> calls;
  std::vector<ReduceStep> after;
  std::vector<cuda::CopiedPiece> copies;  // after that

  Status EnqueueBefore(GpuQueue& queue) const;
  Status EnqueueAfter(GpuQueue& queue) const;
};

// The part of a reduction over `gpus` GPUs, with one tensor each, that kernels
// do because NCCL does not follow common/reduce/reduce.h there.
struct KernelSteps {
  bool before = false;
  bool after = false;
  // NCCL divides. It multiplies by 1/gpus, rounded to the type: for 16-bit
  // types that can be wrong by 0.2 %, so NCCL's average is used only where it
  // is exact.
  bool nccl_averages = false;
};
KernelSteps KernelStepsOf(DType dtype, Op op, double prescale, int64_t divisor,
                          double postscale, uint32_t gpus);

// The steps of each GPU of the communicator, for an operation that has passed
// CheckOperation(); or why it cannot be executed. The communicator with the
// number 0 stands for none: it has one GPU, and NCCL is not called.
StatusOr<std::vector<CollectiveSteps>> MakeSteps(
    const GpuOperation& operation, const GpuCommunicator& communicator,
    const GpuMemories& memories);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_STEPS_H_
