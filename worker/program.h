// maypole-worker: the agent of one node (supervisor) or, with --executor, the
// executor of one job, which the supervisor starts.
//
// Thread contract: call it from the main thread, before any other thread
// exists.
#ifndef MAYPOLE_WORKER_PROGRAM_H_
#define MAYPOLE_WORKER_PROGRAM_H_

#include <string>
#include <vector>

namespace maypole::worker {

// `args` does not include the program's name. Returns the exit status.
int Main(const std::vector<std::string>& args);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_PROGRAM_H_
