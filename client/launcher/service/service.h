// The node service: what starts a job's agent on a node where no maypolerun
// does, for the life of the job's ranks there.
//
// Purpose: `maypolerun --node-service DIRECTORY` is started by the first rank
// of the node (client/bootstrap/node_bootstrap.h) with kServiceReportFd and
// kServiceLockFd. It goes on in a process of its own, apart from the ranks'
// session and pipes, serves <DIRECTORY>/service.sock, and ends when all ranks
// have gone, leaving nothing. A second process (the guard) cleans up after it
// if it is killed.
//
// Thread contract: for a process of one thread.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_

#include <string>

namespace maypole::launcher {

// Returns when the service goes on without us: the exit status.
int RunNodeService(const std::string& directory);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_
