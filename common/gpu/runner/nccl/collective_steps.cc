#include "common/gpu/runner/nccl/collective_steps.h"

#include <algorithm>
#include <span>

namespace maypole {
namespace {

Status Enqueue(const std::vector<ReduceStep>& steps, GpuQueue& queue) {
  for (const ReduceStep& step : steps) {
    const Status s = queue.Reduce({.dtype = step.dtype,
                                   .inputs = step.inputs,
                                   .outputs = step.outputs,
                                   .elements = step.elements,
                                   .prescale = step.prescale,
                                   .divisor = step.divisor,
                                   .postscale = step.postscale},
                                  step.op);
    if (!s.ok()) return s;
  }
  return {};
}

}  // namespace

Status CollectiveSteps::EnqueueBefore(GpuQueue& queue) const {
  for (const cuda::CUevent event : ready) {
    if (Status s = queue.WaitFor(event); !s.ok()) return s;
  }
  return Enqueue(before, queue);
}

Status CollectiveSteps::EnqueueAfter(GpuQueue& queue) const {
  if (Status s = Enqueue(after, queue); !s.ok()) return s;
  const std::span all(copies);
  for (size_t i = 0; i < all.size(); i += cuda::kMaxPieces) {
    const size_t count = std::min<size_t>(cuda::kMaxPieces, all.size() - i);
    const Status s = queue.Copy(all.subspan(i, count));
    if (!s.ok()) return s;
  }
  for (const cuda::CUevent event : ran) {
    if (Status s = queue.RecordInto(event); !s.ok()) return s;
  }
  return {};
}

}  // namespace maypole
