// ExecutorMain: runs maypole-worker as the executor of one job, until the
// supervisor agrees that it is idle, or `stop_signals` (a signalfd) is
// readable. Call it from the main thread, before any other thread exists.
#ifndef MAYPOLE_WORKER_EXECUTOR_MAIN_H_
#define MAYPOLE_WORKER_EXECUTOR_MAIN_H_

#include "absl/status/status.h"
#include "common/system/fd.h"
#include "worker/flags.h"

namespace maypole::worker {

absl::Status ExecutorMain(const WorkerFlags& flags, Fd stop_signals);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_MAIN_H_
