// Finds the environment and the agent of a rank, on maypolerun's host and on
// others.
//
// Thread contract: functions that read this process's environment.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_

#include <string>
#include <vector>

#include "client/launcher/hosts/placement.h"
#include "common/status.h"

namespace maypole::launcher {

// The environment of a rank: ours, with these variables set and those of
// another job, if we run in one, left out.
std::vector<std::string> EnvironmentWith(const Variables& variables);

// The sockets at which a maypole-worker without --socket may listen.
std::vector<std::string> DefaultAgentSockets();

// Finds the socket of the maypole-worker that runs on this host. If *socket is
// empty, sets it to the first default socket that accepts a connection. Returns
// an error if no maypole-worker can be reached.
Status FindRunningAgent(std::string* socket);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_
