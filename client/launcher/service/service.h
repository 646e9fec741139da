// The node service: starts a job's agent on a node whose ranks were started by
// a launcher other than maypolerun. It runs as long as the job's ranks there.
//
// Purpose: the first rank of the node (client/bootstrap/node_bootstrap.h)
// starts `maypolerun --node-service DIRECTORY` with kServiceReportFd and
// kServiceLockFd. The service continues in a process of its own, outside the
// ranks' session and without their pipes. It serves <DIRECTORY>/service.sock,
// and when all ranks have gone it ends and leaves nothing behind. A second
// process (the guard) cleans up if the service is killed.
//
// Thread contract: for single-threaded processes.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_

#include <string>

namespace maypole::launcher {

// Starts the service in the background. Returns the exit status of the calling
// process.
int RunNodeService(const std::string& directory);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_H_
