// What the system says about a process.
#ifndef MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_
#define MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_

namespace maypole::worker {

// It is stopped: by a signal (SIGSTOP, Ctrl-Z) or by a debugger. False if it is
// not, or if that cannot be told (pid 0, no such process, not ours to see).
bool IsStopped(int pid);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_PROCESS_STATE_H_
