// CheckOperation: checks an operation's numbers before a GPU executes it.
//
// Thread contract: a pure function.
//
// Hostility: an operation's numbers come from ranks.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_CHECK_OPERATION_H_
#define MAYPOLE_COMMON_GPU_RUNNER_CHECK_OPERATION_H_

#include "common/gpu/runner/gpu_run.h"
#include "common/status.h"

namespace maypole {

Status CheckOperation(const GpuOperation& operation);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_CHECK_OPERATION_H_
