#include "worker/flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/board.h"
#include "common/limits.h"
#include "common/program/address.h"
#include "common/program/arguments.h"
#include "common/program/secret_file.h"
#include "common/program/tls.h"
#include "spdlog/spdlog.h"
#include "worker/backend/gloo_backend.h"
#include "worker/core/limits.h"
#include "worker/core/version.h"
#include "worker/session/control.h"

ABSL_FLAG(std::string, socket, "",
          "path of the socket that training processes connect to (default: "
          "/run/maypole/agent.sock for root, else "
          "$XDG_RUNTIME_DIR/maypole-agent.sock)");
ABSL_FLAG(std::string, coordinator, "",
          "HOST:PORT of maypole-coordinator; required");
ABSL_FLAG(std::string, node, "",
          "name of this node, unique in the cluster (default: host name)");
ABSL_FLAG(std::string, host, "",
          "name of this machine in messages (default: host name)");
ABSL_FLAG(std::string, network, "",
          "IP address that other nodes reach this one by (default: that of the "
          "route to the coordinator)");
ABSL_FLAG(
    uint32_t, network_connections, 1,
    "TCP connections to each other node, and as many from it, 1 to 3; the "
    "same on all nodes. "
    "More than one where one does not fill the link");
ABSL_FLAG(absl::Duration, network_timeout, absl::Seconds(10),
          "a connection to another node whose kernel has not answered for so "
          "long has failed; 0: after what the kernel does by itself (15 "
          "minutes)");
ABSL_FLAG(std::string, metrics, "127.0.0.1:0",
          "HOST:PORT of the Prometheus endpoint; port 0: any free one; empty: "
          "none");
ABSL_FLAG(std::string, secret_file, "",
          "file with the cluster secret, one line, readable by its owner only");
ABSL_FLAG(
    std::string, tls_ca, "",
    "file (PEM) with the cluster's own CA; with --tls_cert and --tls_key: "
    "calls to the coordinator use TLS, and it must show a certificate of "
    "this CA");
ABSL_FLAG(std::string, tls_cert, "",
          "file (PEM) with this node's certificate of that CA");
ABSL_FLAG(std::string, tls_key, "",
          "file (PEM, mode 0600) with the certificate's key");
ABSL_FLAG(std::string, tls_server_name, "",
          "name that the coordinator's certificate must be for (default: the "
          "host of --coordinator)");
ABSL_FLAG(
    int, announce_fd, -1,
    "descriptor that gets one line 'metrics=HOST:PORT socket=PATH' when ready");
ABSL_FLAG(absl::Duration, resume_timeout, absl::Seconds(3),
          "how long a job goes on without its coordinator");
ABSL_FLAG(absl::Duration, start_timeout, absl::Seconds(120),
          "how long the first rank of a node waits for the node's others, if "
          "the ranks do not say it (MAYPOLE_START_TIMEOUT)");
ABSL_FLAG(absl::Duration, frozen_timeout, absl::Seconds(10),
          "a rank that does not move for so long in the middle of an operation "
          "(it is stopped by a signal, say) is lost; 0: never");
ABSL_FLAG(uint32_t, chunk_bytes, 512 * 1024,
          "bytes of a chunk; a multiple of 4096");
ABSL_FLAG(uint32_t, ring_depth, 8, "chunks in each ring, 2 to 64");
ABSL_FLAG(uint64_t, arena_bytes, uint64_t{8} << 30,
          "limit of each rank's arena tensors, a multiple of 4096: address "
          "space, memory is taken as tensors are made; 0: no arenas");
ABSL_FLAG(uint32_t, slots, maypole::kMaxSlots,
          "limit of a job's different operation names, a multiple of 64; "
          "memory is taken as they are used");
ABSL_FLAG(std::string, log_level, "info",
          "trace, debug, info, warning, error or off");
ABSL_FLAG(bool, executor, false, "internal: run as a job's executor");
ABSL_FLAG(int, control_fd, -1, "internal");
ABSL_FLAG(int, stats_fd, -1, "internal");
ABSL_FLAG(int, tls_fd, -1, "internal");

namespace maypole::worker {
namespace {

constexpr char kUsage[] =
    R"(maypole-worker: the Maypole agent of one node. Training processes connect to its
socket; it executes their collectives together with the agents of other nodes.
It starts one process (executor) per job, under the job's user.

Usage:
  maypole-worker --coordinator=HOST:PORT [flags]

Example:
  maypole-worker --coordinator=head:4001 --secret_file=/etc/maypole/secret \
      --socket=/run/maypole/agent.sock --metrics=0.0.0.0:9402
  MAYPOLE_AGENT=/run/maypole/agent.sock MAYPOLE_JOB=a MAYPOLE_RANK=0 \
      MAYPOLE_SIZE=8 ... python3 train.py

SIGTERM and SIGINT end it with status 0: its jobs get an error that says so.
Log lines (key=value) go to stderr.

Flags:
)";

absl::Status Bad(const std::string& flag, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

std::string HostName() {
  char name[kMaxHostBytes + 1] = {};
  gethostname(name, sizeof(name) - 1);
  return name[0] == 0 ? "localhost" : name;
}

absl::StatusOr<std::string> DefaultSocket() {
  if (geteuid() == 0) {
    // Users must get in, whatever the umask.
    if (mkdir("/run/maypole", 0755) == 0) chmod("/run/maypole", 0755);
    return std::string("/run/maypole/agent.sock");
  }
  const char* dir = std::getenv("XDG_RUNTIME_DIR");
  if (dir == nullptr || *dir == 0) {
    return Bad("socket",
               "XDG_RUNTIME_DIR is not set, so there is no default; give a "
               "path in a directory of your own");
  }
  return absl::StrCat(dir, "/maypole-agent.sock");
}

absl::Status CheckName(const std::string& flag, const std::string& name) {
  bool plain = !name.empty() && name.size() <= kMaxHostBytes;
  for (const char c : name) {
    plain = plain && absl::ascii_isgraph(static_cast<unsigned char>(c)) &&
            c != '"' && c != '\\';
  }
  if (plain) return absl::OkStatus();
  return Bad(flag, absl::StrCat("'", name, "': 1 to ", kMaxHostBytes,
                                " printable ASCII characters without spaces "
                                "or quotes"));
}

absl::Status Check(const WorkerFlags& f) {
  if (f.coordinator.empty()) {
    return Bad("coordinator",
               "HOST:PORT of a running maypole-coordinator is required");
  }
  const auto coordinator = ParseAddress("--coordinator", f.coordinator);
  if (!coordinator.ok()) return coordinator.status();
  if (!f.metrics.empty()) {
    const auto metrics = ParseAddress("--metrics", f.metrics);
    if (!metrics.ok()) return metrics.status();
  }
  if (spdlog::level::from_str(f.log_level) == spdlog::level::off &&
      f.log_level != "off") {
    return Bad("log_level",
               absl::StrCat("'", f.log_level,
                            "' is none of trace, debug, info, warning, error, "
                            "off"));
  }
  if (absl::Status s = CheckName("node", f.node); !s.ok()) return s;
  if (absl::Status s = CheckName("host", f.host); !s.ok()) return s;
  if (f.resume_timeout <= absl::ZeroDuration() ||
      f.start_timeout <= absl::ZeroDuration()) {
    return Bad("resume_timeout, --start_timeout", "must be positive");
  }
  if (f.frozen_timeout < absl::ZeroDuration() ||
      f.frozen_timeout == absl::InfiniteDuration()) {
    return Bad("frozen_timeout", "must not be negative or infinite");
  }
  if (f.network_connections < 1 || f.network_connections > kMaxConnections) {
    return Bad("network_connections", absl::StrCat("1 to ", kMaxConnections));
  }
  if (f.network_timeout < absl::ZeroDuration() ||
      f.network_timeout > absl::Hours(1)) {
    return Bad("network_timeout", "0 to 1h");
  }
  BoardConfig config;
  config.chunk_bytes = f.chunk_bytes;
  config.ring_depth = f.ring_depth;
  config.arena_bytes = f.arena_bytes;
  config.slots = f.slots;
  return ToAbsl(CheckConfig(config));
}

}  // namespace

absl::StatusOr<WorkerFlags> ReadFlags(int argc, char** argv) {
  absl::FlagsUsageConfig usage;
  usage.version_string = [] {
    return absl::StrCat("maypole-worker ", kVersion, "\n");
  };
  absl::SetFlagsUsageConfig(usage);
  if (absl::Status s = CheckArguments(argc, argv); !s.ok()) return s;
  absl::ParseCommandLine(argc, argv);
  WorkerFlags f;
  f.socket = absl::GetFlag(FLAGS_socket);
  f.coordinator = absl::GetFlag(FLAGS_coordinator);
  f.node = absl::GetFlag(FLAGS_node);
  f.host = absl::GetFlag(FLAGS_host);
  f.network = WithoutBrackets(absl::GetFlag(FLAGS_network));
  f.network_connections = absl::GetFlag(FLAGS_network_connections);
  f.network_timeout = absl::GetFlag(FLAGS_network_timeout);
  f.metrics = absl::GetFlag(FLAGS_metrics);
  f.announce_fd = absl::GetFlag(FLAGS_announce_fd);
  f.resume_timeout = absl::GetFlag(FLAGS_resume_timeout);
  f.start_timeout = absl::GetFlag(FLAGS_start_timeout);
  f.frozen_timeout = absl::GetFlag(FLAGS_frozen_timeout);
  f.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  f.ring_depth = absl::GetFlag(FLAGS_ring_depth);
  f.arena_bytes = absl::GetFlag(FLAGS_arena_bytes);
  f.slots = absl::GetFlag(FLAGS_slots);
  f.log_level = absl::GetFlag(FLAGS_log_level);
  f.executor = absl::GetFlag(FLAGS_executor);
  f.control_fd = absl::GetFlag(FLAGS_control_fd);
  f.stats_fd = absl::GetFlag(FLAGS_stats_fd);
  f.tls_fd = absl::GetFlag(FLAGS_tls_fd);
  if (f.node.empty()) f.node = HostName();
  if (f.host.empty()) f.host = HostName();
  if (absl::Status s = Check(f); !s.ok()) return s;
  if (f.executor) return f;
  if (const std::string path = absl::GetFlag(FLAGS_secret_file);
      !path.empty()) {
    absl::StatusOr<std::string> secret = ReadSecretFile(path);
    if (!secret.ok()) return secret.status();
    f.secret = *secret;
  }
  absl::StatusOr<TlsOptions> tls =
      ReadTlsFiles(absl::GetFlag(FLAGS_tls_ca), absl::GetFlag(FLAGS_tls_cert),
                   absl::GetFlag(FLAGS_tls_key));
  if (!tls.ok()) return tls.status();
  f.tls = *std::move(tls);
  f.tls.server_name = absl::GetFlag(FLAGS_tls_server_name);
  if (f.socket.empty()) {
    absl::StatusOr<std::string> socket = DefaultSocket();
    if (!socket.ok()) return socket.status();
    f.socket = *socket;
  }
  return f;
}

void PrintHelp() {
  std::printf("%s", kUsage);
  PrintFlags("worker/flags.cc");
  std::printf("\nLimits: %zu executors, %d ranks of a job on a node.\n",
              kMaxExecutors, kMaxLocalRanks);
}

std::vector<std::string> ExecutorArguments(const WorkerFlags& f) {
  return {
      absl::StrCat("--coordinator=", f.coordinator),
      absl::StrCat("--node=", f.node),
      absl::StrCat("--host=", f.host),
      absl::StrCat("--network=", f.network),
      absl::StrCat("--network_connections=", f.network_connections),
      absl::StrCat("--network_timeout=",
                   absl::FormatDuration(f.network_timeout)),
      absl::StrCat("--resume_timeout=", absl::FormatDuration(f.resume_timeout)),
      absl::StrCat("--start_timeout=", absl::FormatDuration(f.start_timeout)),
      absl::StrCat("--frozen_timeout=", absl::FormatDuration(f.frozen_timeout)),
      absl::StrCat("--chunk_bytes=", f.chunk_bytes),
      absl::StrCat("--ring_depth=", f.ring_depth),
      absl::StrCat("--arena_bytes=", f.arena_bytes),
      absl::StrCat("--slots=", f.slots),
      absl::StrCat("--log_level=", f.log_level)};
}

}  // namespace maypole::worker
