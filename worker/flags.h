// WorkerFlags: the checked flags of maypole-worker, and the command line that
// the supervisor derives from them for its executors.
//
// Thread contract: values and functions; ReadFlags() reads files and the
// environment.
#ifndef MAYPOLE_WORKER_FLAGS_H_
#define MAYPOLE_WORKER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/encryption_mode.h"
#include "common/limits.h"
#include "common/program/tls.h"
#include "common/wire/versions.h"
#include "worker/backend/exchange_model.h"
#include "worker/backend/tcp_backend.h"

namespace maypole::worker {

struct WorkerFlags {
  // Set by --help and similar flags: the program prints this and exits.
  std::optional<std::string> answer;
  std::string socket;
  std::string coordinator;
  std::string node;
  std::string host;
  // Numeric addresses or host names. If empty, the backend finds the address
  // of the route to the coordinator when it needs one.
  std::vector<std::string> networks;
  uint32_t network_connections = 1;
  uint32_t network_levels = kMaxLevels;
  std::string network_congestion = "auto";
  DataPath network_backend = DataPath::kTcp;
  EncryptionMode network_encryption = EncryptionMode::kOff;
  absl::Duration network_timeout = absl::Seconds(10);
  std::string metrics = "127.0.0.1:0";
  std::string secret;
  bool share_secret = false;
  TlsOptions tls;
  int announce_fd = -1;
  VersionRange versions = kProtocolVersions;
  absl::Duration resume_timeout = absl::Seconds(3);
  absl::Duration coordinator_timeout = absl::Seconds(60);
  absl::Duration start_timeout = absl::Seconds(120);
  absl::Duration frozen_timeout = absl::Seconds(10);
  uint32_t chunk_bytes = 1 << 20;
  uint32_t ring_depth = 2;
  uint64_t arena_bytes = uint64_t{8} << 30;
  uint32_t slots = kMaxSlots;
  uint64_t state_bytes = uint64_t{64} << 30;
  absl::Duration state_timeout = absl::Seconds(600);
  std::string log_level = "info";
  bool log_hide_time = false;
  bool announce_ranks = false;
  bool executor = false;
  int control_fd = -1;
  int stats_fd = -1;
  int tls_fd = -1;  // negative: no TLS
};

// `args` does not include the program's name. Reads the files that the flags
// name. The error names the wrong flag.
absl::StatusOr<WorkerFlags> ReadFlags(const std::vector<std::string>& args);

// Checks that a job can be encrypted in this mode. UCX does not encrypt.
// kRequire also needs TLS to the coordinator, which receives the names of
// tensors and the secrets from which keys are made; a coordinator on this
// machine needs none, because nothing crosses the network.
absl::Status CheckEncryption(EncryptionMode mode, const WorkerFlags& flags,
                             bool tls);

// Returns the flags that an executor needs, as command-line arguments.
std::vector<std::string> ExecutorArguments(const WorkerFlags& flags);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_FLAGS_H_
