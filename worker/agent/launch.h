// LaunchExecutor: starts an executor process.
//
// Purpose: runs this program again with --executor and two or three
// descriptors: the control socket, the statistics page and, with TLS, the
// certificate and key (sealed_tls.h). The executor starts as the agent's user;
// a Setup message on the control socket may tell it to become another one
// (become_user.h).
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
  std::vector<std::string> environment;
  int control_fd = -1;
  int stats_fd = -1;
  int tls_fd = -1;  // negative: none
};

absl::StatusOr<Child> LaunchExecutor(const LaunchOptions& options);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_LAUNCH_H_
