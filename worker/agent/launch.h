// Launch: starts an executor process.
//
// Purpose: the same program again, with --executor and two or three
// descriptors: its control socket, its statistics page, and certificate and
// key, if there is TLS. It starts as the agent's user; for another one it is
// told by its control socket to become that one (become_user.h).
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_AGENT_LAUNCH_H_
#define MAYPOLE_WORKER_AGENT_LAUNCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/spawn.h"

namespace maypole::worker {

struct LaunchOptions {
  std::vector<std::string> arguments;  // after --executor and the descriptors
  int control_fd = -1;
  int stats_fd = -1;
  int tls_fd = -1;  // negative: none
};

absl::StatusOr<Child> LaunchExecutor(const LaunchOptions& options);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_LAUNCH_H_
