// Flags of maypole-worker, checked; and how a supervisor gives them to its
// executors.
#ifndef MAYPOLE_WORKER_FLAGS_H_
#define MAYPOLE_WORKER_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/program/tls.h"

namespace maypole::worker {

struct WorkerFlags {
  std::string socket;
  std::string coordinator;
  std::string node;
  std::string host;
  std::string network;
  uint32_t network_connections = 1;
  absl::Duration network_timeout;
  std::string metrics;
  std::string secret;
  TlsOptions tls;
  int announce_fd = -1;
  absl::Duration resume_timeout;
  absl::Duration start_timeout;
  absl::Duration frozen_timeout;
  uint32_t chunk_bytes = 0;
  uint32_t ring_depth = 0;
  uint64_t arena_bytes = 0;
  uint32_t slots = 0;
  std::string log_level;
  bool executor = false;
  int control_fd = -1;
  int stats_fd = -1;
  int tls_fd = -1;  // negative: no TLS
};

// Parses the command line (ends the program on --version) and fills in
// defaults. An error says which flag is wrong.
absl::StatusOr<WorkerFlags> ReadFlags(int argc, char** argv);

// To stdout.
void PrintHelp();

// What an executor needs of it, as a command line.
std::vector<std::string> ExecutorArguments(const WorkerFlags& flags);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_FLAGS_H_
