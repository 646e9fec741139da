#include "worker/gpu/check_operation.h"

#include "common/gpu/kernels/kernels.h"
#include "common/limits.h"
#include "common/types.h"

namespace maypole::worker {

absl::Status CheckOperation(const GpuOperation& o) {
  if ((o.kind == Kind::kAllreduce || o.kind == Kind::kBroadcast) &&
      IsKnown(o.dtype) && IsKnown(o.op) && o.elements > 0 &&
      o.elements <= kMaxGpuMemoryBytes && !o.tensors.empty() &&
      o.tensors.size() <= cuda::kMaxReduced && o.divisor >= 1 &&
      o.divisor <= cuda::kMaxDivisor) {
    return {};
  }
  return absl::InvalidArgumentError("no such operation is possible on a GPU");
}

}  // namespace maypole::worker
