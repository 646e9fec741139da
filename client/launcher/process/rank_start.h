// What a rank is started with, on maypolerun's own host and on others.
//
// Thread contract: functions that read this process's environment.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_

#include <string>
#include <vector>

#include "client/launcher/hosts/placement.h"
#include "common/status.h"

namespace maypole::launcher {

// Environment of a rank: ours and what it needs.
std::vector<std::string> RankEnvironment(const JobEnvironment& job,
                                         const Place& place);

// Where a maypole-worker listens that was not told where.
std::vector<std::string> DefaultAgentSockets();

// The socket of the maypole-worker that runs on this host: `socket`, or the
// default one if it is empty. An error if nobody listens there.
Status FindRunningAgent(std::string* socket);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_RANK_START_H_
