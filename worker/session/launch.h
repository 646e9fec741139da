// Launch: starts an executor process for a user.
//
// Purpose: the same program again, with --executor, under the client's uid and
// gid, with two or three descriptors: its control socket, its statistics page,
// and certificate and key, if there is TLS.
//
// Thread contract: any thread; between fork and exec only what is
// async-signal-safe happens.
#ifndef MAYPOLE_WORKER_SESSION_LAUNCH_H_
#define MAYPOLE_WORKER_SESSION_LAUNCH_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace maypole::worker {

struct LaunchOptions {
  std::vector<std::string> arguments;  // after --executor and the descriptors
  int control_fd = -1;
  int stats_fd = -1;
  int tls_fd = -1;  // negative: none
  uid_t uid = 0;
  gid_t gid = 0;
};

absl::StatusOr<pid_t> LaunchExecutor(const LaunchOptions& options);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_LAUNCH_H_
