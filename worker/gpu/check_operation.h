// CheckOperation: are an operation's numbers such that a GPU can execute it?
//
// Thread contract: a pure function.
//
// Hostility: an operation's numbers come from ranks.
#ifndef MAYPOLE_WORKER_GPU_CHECK_OPERATION_H_
#define MAYPOLE_WORKER_GPU_CHECK_OPERATION_H_

#include "common/status.h"
#include "worker/core/operations/gpu_run.h"

namespace maypole::worker {

Status CheckOperation(const GpuOperation& operation);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_CHECK_OPERATION_H_
