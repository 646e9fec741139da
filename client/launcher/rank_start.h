// What a rank is started with, on maypolerun's own host and on others.
//
// Thread contract: functions that read this process's environment.
#ifndef MAYPOLE_CLIENT_LAUNCHER_RANK_START_H_
#define MAYPOLE_CLIENT_LAUNCHER_RANK_START_H_

#include <string>
#include <vector>

#include "client/launcher/placement.h"
#include "client/launcher/process.h"
#include "common/status.h"

namespace maypole::launcher {

// The processors this process may use.
int UsableCores();

// Program, arguments, environment and death signal of a rank; descriptors and
// limits are the caller's.
SpawnSpec RankSpec(const std::string& program,
                   const std::vector<std::string>& command,
                   const JobEnvironment& job, const Place& place);

// The socket of the maypole-worker that runs on this host: `socket`, or the
// default one if it is empty. An error if nobody listens there.
Status FindRunningAgent(std::string* socket);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_RANK_START_H_
