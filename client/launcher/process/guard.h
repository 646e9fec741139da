// Guard: the process that the user sees as maypolerun. Its child, the
// supervisor, does the work.
//
// Purpose: the two processes watch each other, so that a kill -9 leaves no
// process and no file behind.
//
//   killed process        cleaned up by
//   a rank                the supervisor (JobLauncher)
//   the guard             the supervisor: the kernel sends it SIGTERM; it sees
//                         that its parent is gone, kills all processes and
//                         removes the directory
//   the supervisor        the guard: as subreaper it inherits all processes
//                         (ranks die with the supervisor anyway)
//   both at once          the kernel: parent death signals end ranks and
//                         daemons; only the directory remains
//
// The guard is in the process group of the shell's job, the supervisor in one
// of its own. So a signal of the terminal reaches only the guard, which
// forwards it once.
//
// Thread contract: one thread; main() calls it once.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_

#include <sys/types.h>

#include <functional>
#include <string>

namespace maypole::launcher {

// The surroundings of the supervisor.
struct Supervised {
  std::string directory;  // private; empty if none was requested
  pid_t guard = 0;        // its parent
  pid_t guard_group = 0;  // the terminal's foreground group, unless maypolerun
                          // runs in the background
};

// Calls `work` in the supervisor, and returns its result in the guard.
int RunGuarded(bool needs_directory,
               const std::function<int(const Supervised&)>& work);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_
