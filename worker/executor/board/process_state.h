// IsStopped: whether a process is stopped, from /proc.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_
#define MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_

namespace maypole::worker {

// Returns true if the process is stopped by a signal (SIGSTOP, Ctrl-Z) or by a
// debugger. Returns false if it is not, or if this cannot be determined (pid 0,
// no such process, no permission).
bool IsStopped(int pid);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_
