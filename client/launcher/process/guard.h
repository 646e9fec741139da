// Guard: the process the user sees as maypolerun; its child does the work.
//
// Purpose: two processes watch each other, so that no kill -9 leaves anything.
//
//   what is killed        who cleans up
//   a rank                the supervisor (JobLauncher)
//   the guard             the supervisor: it gets SIGTERM by the kernel, sees
//                         that its parent is gone, kills all, removes the
//                         directory
//   the supervisor        the guard: as subreaper it inherits all processes
//                         (ranks die with the supervisor anyway)
//   both at once          the kernel: parent death signals end ranks and
//                         daemons; only the directory stays
//
// The guard stands in the shell's job, the supervisor in a process group of
// its own: what the terminal sends goes to the guard once and is sent on once.
//
// Thread contract: one thread; call once, from main.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_

#include <sys/types.h>

#include <functional>
#include <string>

namespace maypole::launcher {

// Where the supervisor finds itself.
struct Supervised {
  std::string directory;  // private; empty if none was asked for
  pid_t guard = 0;        // its parent
  pid_t guard_group = 0;  // the terminal's foreground group, if we are there
};

// Calls work in the supervisor and returns its result as our exit status.
int RunGuarded(bool needs_directory,
               const std::function<int(const Supervised&)>& work);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_GUARD_H_
