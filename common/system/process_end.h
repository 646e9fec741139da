// Descriptors that report the end of a process, on every kernel.
//
// Purpose: an event loop waits for the end of a process as for any descriptor.
// The kernel has such descriptors, pidfds, since Linux 5.3; older kernels, some
// sandboxes and emulators refuse them. There a thread watches the process and
// holds the writing end of a pipe, which it closes when the process has ended;
// the caller gets the reading end.
//
//   Fd end;
//   Status s = WatchChild(pid, &end);   // or end = WatchProcess(pid)
//   poll end for POLLIN | POLLHUP; then waitpid(pid), for a child
//
// How the thread knows:
//   a child: it sleeps in waitid(WNOWAIT), which leaves the child to be reaped
//     by the caller. Until then no other process gets its number. If anything
//     else reaps the child, waitid fails, and the descriptor also becomes
//     readable.
//   another process: it reads /proc/PID/stat every kLookInterval. A process
//     that has started at another time is another process.
// Simpler ways are wrong: a pipe held by the child itself is also held by its
// children, which may outlive it, and programs close descriptors that they do
// not know; SIGCHLD comes once for several children, and belongs to the
// program.
//
// Thread contract: any thread may call these functions.
//
// Invariants: the thread takes no signals, owns nothing of the caller's, and
// ends with the process that it watches. WatchProcess()'s also ends soon after
// the descriptor was closed.
#ifndef MAYPOLE_COMMON_SYSTEM_PROCESS_END_H_
#define MAYPOLE_COMMON_SYSTEM_PROCESS_END_H_

#include <sys/types.h>

#include <chrono>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

// How late WatchProcess() may be without a pidfd.
inline constexpr std::chrono::milliseconds kLookInterval{100};

// Watches a child of this process that has not been reaped yet. Fails if no
// descriptor or thread is left.
Status WatchChild(pid_t child, Fd* end);

// Watches any process. Returns an invalid Fd if there is no such process, or no
// descriptor or thread is left.
Fd WatchProcess(pid_t pid);

// The pidfd of a process, which can be sent to other processes. Invalid if
// there is no such process, or the kernel has no pidfds; errno says why.
Fd OpenPidFd(pid_t pid);

// Whether the error of a system call says that the kernel, a sandbox or an
// emulator does not offer it, or not with these flags.
bool IsRefusal(int error);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_PROCESS_END_H_
