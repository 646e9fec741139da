#include "worker/flags.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/absl_status.h"
#include "common/board/board.h"
#include "common/command_line/command_line.h"
#include "common/command_line/daemon_value.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/program/address.h"
#include "common/program/secret_file.h"
#include "common/program/tls.h"
#include "common/system/fd.h"
#include "common/version.h"
#include "worker/agent/control.h"
#include "worker/backend/tcp_backend.h"
#include "worker/backend/tcp_options.h"
#include "worker/core/limits.h"
#include "worker/network/route.h"

namespace maypole::worker {
namespace {

constexpr char kAbout[] =
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
)";

// Flag values that have to be parsed, or name files.
struct Texts {
  std::string networks;
  std::string network_backend = "tcp";
  std::string network_encryption = "off";
  std::string secret_file;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
};

void DefineAddresses(Texts* texts, WorkerFlags* f, CommandLine* line) {
  line->Add({"--socket"},
            FileValue(&f->socket)
                .WithDefault("/run/maypole/agent.sock for root, else "
                             "$XDG_RUNTIME_DIR/maypole-agent.sock"),
            "path of the socket that training processes connect to");
  line->Add({"--coordinator"}, TextValue(&f->coordinator, "HOST:PORT,..."),
            "address of maypole-coordinator, or of several of which one leads; "
            "required");
  line->Add({"--node"}, TextValue(&f->node, "NAME").WithDefault("host name"),
            "name of this node, unique in the cluster");
  line->Add({"--host"}, TextValue(&f->host, "NAME").WithDefault("host name"),
            "name of this machine in messages");
  line->Add({"--network"},
            TextValue(&texts->networks, "IP,...")
                .WithDefault("that of the route to the coordinator"),
            "address at which other nodes reach this one, or the name of its "
            "network interface. With up to 4 of them, separated by commas, "
            "data travels over all; as many on each node, each in a subnet of "
            "its own");
  line->Add({"--network_backend"}, TextValue(&texts->network_backend, "NAME"),
            "what carries tensors to other nodes: tcp, ucx (InfiniBand, RoCE "
            "and others, by the UCX library of this machine, which must be "
            "1.18 or newer, on all nodes), auto (ucx between nodes with a "
            "working adapter for InfiniBand or RoCE, else tcp). UCX does not "
            "encrypt; its variables (UCX_TLS, UCX_NET_DEVICES) count");
  line->Add({"--network_connections"},
            IntegerValue(&f->network_connections, 1u, kMaxConnections),
            "TCP connections in each direction to each other node, 1 to 4; "
            "must be the same on all nodes. Use more than one if a single "
            "connection does not fill the link. With several addresses "
            "(--network), the next multiple of their number");
  line->Add({"--network_levels"},
            IntegerValue(&f->network_levels, 1u, kMaxLevels),
            "in how many levels nodes reduce together at most, 1 to 4; the "
            "least of the nodes' numbers counts. How many there are depends "
            "on the links, which are measured when a job starts; with 1, sums "
            "of more than 3 nodes have the same bits in every run");
  line->Add({"--network_congestion"}, TextValue(&f->network_congestion, "NAME"),
            "TCP congestion control for data to other nodes: auto (the "
            "system's, but cubic instead of bbr, which is slow between near "
            "nodes), system, or a name that the kernel knows");
  line->Add({"--network_encryption"},
            TextValue(&texts->network_encryption, "MODE"),
            "what goes from executor to executor: off (in the clear), on "
            "(encrypted with nodes that encrypt, too; in the clear with "
            "others), require (nodes that do not encrypt are refused, and so "
            "is a coordinator on another machine without TLS). TLS 1.3, with "
            "keys of the job; a job may ask for more "
            "(MAYPOLE_NETWORK_ENCRYPTION, maypolerun --encrypt)");
  line->Add(
      {"--network_timeout"},
      DurationValue(&f->network_timeout, absl::ZeroDuration(), absl::Hours(1)),
      "a connection counts as failed when the other node's kernel has "
      "answered nothing for this long, neither to data nor to probes; 0: the "
      "limit of this kernel for data (15 minutes), none for a connection that "
      "only receives");
  line->Add({"--metrics"}, TextValue(&f->metrics, "HOST:PORT"),
            "address of the Prometheus endpoint; port 0: any free one; empty: "
            "none");
}

void DefineSecrets(Texts* texts, WorkerFlags* f, CommandLine* line) {
  line->Add({"--secret_file"}, FileValue(&texts->secret_file),
            "file with the cluster secret, one line, readable by its owner "
            "only; executors get a ticket of their job instead");
  // Internal: tests pass it, to have executors that show what is in the file.
  line->Add({"--share_secret"}, SwitchValue(&f->share_secret), "");
  line->Add({"--tls_ca"}, FileValue(&texts->tls_ca),
            "file (PEM) with the cluster's own CA. With --tls_cert and "
            "--tls_key, calls to the coordinator use TLS, and the coordinator "
            "must present a certificate of this CA");
  line->Add({"--tls_cert"}, FileValue(&texts->tls_cert),
            "file (PEM) with this node's certificate, signed by that CA");
  line->Add({"--tls_key"}, FileValue(&texts->tls_key),
            "file (PEM, mode 0600) with the certificate's key");
  line->Add({"--tls_server_name"},
            TextValue(&f->tls.server_name, "NAME")
                .WithDefault("the host of --coordinator"),
            "name that the coordinator's certificate must carry");
}

void DefineJobs(WorkerFlags* f, CommandLine* line) {
  line->Add({"--resume_timeout"},
            DurationValue(&f->resume_timeout, kShortestDuration,
                          absl::InfiniteDuration()),
            "how long a job waits for the first contact with the coordinator, "
            "and for the coordinator to say which node was lost");
  line->Add({"--coordinator_timeout"},
            DurationValue(&f->coordinator_timeout, kShortestDuration,
                          absl::InfiniteDuration()),
            "how long ranks wait for something that only the coordinator can "
            "give, while it cannot be reached; operations that do not need it "
            "go on");
  line->Add({"--start_timeout"},
            DurationValue(&f->start_timeout, kShortestDuration,
                          absl::InfiniteDuration()),
            "how long the first rank of a node waits for the others, unless "
            "they set MAYPOLE_START_TIMEOUT");
  line->Add({"--frozen_timeout"},
            DurationValue(&f->frozen_timeout, absl::ZeroDuration(), kYear),
            "a rank that makes no progress for this long in the middle of an "
            "operation (it is stopped by a signal, for example) counts as "
            "lost; 0: never");
  line->Add({"--chunk_bytes"}, IntegerValue(&f->chunk_bytes, 1u),
            "bytes of a chunk; a multiple of 4096");
  line->Add({"--ring_depth"}, IntegerValue(&f->ring_depth, 2u, kMaxRingDepth),
            "chunks in each ring, 2 to 64");
  line->Add({"--arena_bytes"}, IntegerValue(&f->arena_bytes, uint64_t{0}),
            "limit of each rank's arena tensors, a multiple of 4096. This "
            "reserves address space only; memory is allocated as tensors are "
            "created. 0: no arenas");
  line->Add({"--slots"}, IntegerValue(&f->slots, 64u, kMaxSlots),
            "limit of the operation names that a job uses at the same time, a "
            "multiple of 64; memory is allocated as names are used");
  line->Add(
      {"--state_bytes"}, IntegerValue(&f->state_bytes, uint64_t{0}),
      "limit of the states that a job's ranks leave with this node, so "
      "that they survive the ranks (two copies of each; docs/elastic.md)");
  line->Add({"--state_timeout"},
            DurationValue(&f->state_timeout, absl::ZeroDuration(), kYear),
            "how long such states are kept while the job has no process on "
            "this node");
}

void DefineRest(WorkerFlags* f, CommandLine* line) {
  line->Add({"--announce_fd"},
            IntegerValue(&f->announce_fd, -1).WithDefault(""),
            "descriptor to which the agent writes one line "
            "'metrics=HOST:PORT socket=PATH' when it is ready");
  line->Add({"--announce_ranks"}, SwitchValue(&f->announce_ranks),
            "also write a line 'rank=N job=ID' there for each rank that the "
            "agent accepts");
  line->Add({"--log_level"}, LogLevelValue(&f->log_level),
            "trace, debug, info, warning, error or off");
  line->Add({"--log_hide_time"}, SwitchValue(&f->log_hide_time),
            "leave the time out of log lines, because the journal has it, for "
            "example");
  // Internal: tests pass it, to have an agent of the next version.
  line->Add({"--newest_protocol"},
            IntegerValue(&f->versions.newest, kProtocolVersions.newest,
                         kProtocolVersions.newest + 1),
            "");
  // Internal: the supervisor passes these when it starts an executor.
  line->Add({"--executor"}, SwitchValue(&f->executor), "");
  line->Add({"--control_fd"}, IntegerValue(&f->control_fd, -1), "");
  line->Add({"--stats_fd"}, IntegerValue(&f->stats_fd, -1), "");
  line->Add({"--tls_fd"}, IntegerValue(&f->tls_fd, -1), "");
}

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
    // All users must be able to enter the directory, whatever the umask is.
    if (mkdir("/run/maypole", 0755) == 0) chmod("/run/maypole", 0755);
    return std::string("/run/maypole/agent.sock");
  }
  const char* dir = std::getenv("XDG_RUNTIME_DIR");
  if (dir == nullptr || *dir == 0) {
    return Bad("socket",
               "must be set, because XDG_RUNTIME_DIR is not; use a path in a "
               "directory that you own");
  }
  return absl::StrCat(dir, "/maypole-agent.sock");
}

absl::Status Check(const WorkerFlags& f) {
  if (f.coordinator.empty()) {
    return Bad("coordinator",
               "HOST:PORT of a running maypole-coordinator is required");
  }
  const auto coordinator = ParseAddresses("--coordinator", f.coordinator);
  if (!coordinator.ok()) return coordinator.status();
  if (!f.metrics.empty()) {
    const auto metrics = ParseAddress("--metrics", f.metrics);
    if (!metrics.ok()) return metrics.status();
  }
  for (const auto& [flag, name] :
       {std::pair("--node", f.node), std::pair("--host", f.host)}) {
    const Status s = CheckName(flag, name, kMaxHostBytes);
    if (!s.ok()) return ToAbsl(s);
  }
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.valid()) {
    absl::Status s = SetTcpCongestion(socket.get(), f.network_congestion);
    if (!s.ok()) return s;
  }
  BoardConfig config;
  config.chunk_bytes = f.chunk_bytes;
  config.ring_depth = f.ring_depth;
  config.arena_bytes = f.arena_bytes;
  config.slots = f.slots;
  return ToAbsl(CheckConfig(config));
}

// In the order of DataPath.
constexpr const char* kDataPaths[] = {"tcp", "ucx", "auto"};

absl::Status ParseDataPath(const std::string& text, DataPath* path) {
  const auto it = std::find(std::begin(kDataPaths), std::end(kDataPaths), text);
  if (it == std::end(kDataPaths)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--network_backend='", text, "': expected tcp, ucx or auto"));
  }
  *path = static_cast<DataPath>(it - std::begin(kDataPaths));
  return absl::OkStatus();
}

absl::Status ReadSecrets(const Texts& texts, WorkerFlags* f) {
  if (!texts.secret_file.empty()) {
    const Status read = ReadSecretFile(texts.secret_file, &f->secret);
    if (!read.ok()) return ToAbsl(read);
  }
  absl::StatusOr<TlsOptions> tls =
      ReadTlsFiles(texts.tls_ca, texts.tls_cert, texts.tls_key);
  if (!tls.ok()) return tls.status();
  tls->server_name = f->tls.server_name;
  f->tls = *std::move(tls);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerFlags> ReadFlags(const std::vector<std::string>& args) {
  Texts texts;
  WorkerFlags f;
  CommandLine line(
      {.name = "maypole-worker",
       .version = kVersion,
       .about = kAbout,
       .notes = absl::StrCat("Limits: ", kMaxExecutors, " executors, ",
                             kMaxLocalRanks, " ranks of a job on a node.")});
  DefineAddresses(&texts, &f, &line);
  DefineSecrets(&texts, &f, &line);
  DefineJobs(&f, &line);
  DefineRest(&f, &line);
  if (Status s = line.Parse(args, &f.answer); !s.ok()) return ToAbsl(s);
  if (f.answer) return f;
  f.networks = absl::StrSplit(texts.networks, ',', absl::SkipEmpty());
  for (std::string& network : f.networks) {
    const std::string address = AddressOfInterface(network);
    network = address.empty() ? WithoutBrackets(network) : address;
  }
  if (f.networks.size() > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("--network has ", f.networks.size(),
                     " addresses; at most ", kMaxConnections, " are allowed"));
  }
  if (f.node.empty()) f.node = HostName();
  if (f.host.empty()) f.host = HostName();
  if (absl::Status s = Check(f); !s.ok()) return s;
  const Status encryption = ParseEncryptionMode(
      "--network_encryption", texts.network_encryption, &f.network_encryption);
  if (!encryption.ok()) return ToAbsl(encryption);
  if (absl::Status s = ParseDataPath(texts.network_backend, &f.network_backend);
      !s.ok()) {
    return s;
  }
  if (f.executor) return f;
  if (absl::Status s = ReadSecrets(texts, &f); !s.ok()) return s;
  if (absl::Status s =
          CheckEncryption(f.network_encryption, f, f.tls.enabled());
      !s.ok()) {
    return s;
  }
  if (!f.socket.empty()) return f;
  absl::StatusOr<std::string> socket = DefaultSocket();
  if (!socket.ok()) return socket.status();
  f.socket = *std::move(socket);
  return f;
}

absl::Status CheckEncryption(EncryptionMode mode, const WorkerFlags& flags,
                             bool tls) {
  if (mode != EncryptionMode::kOff && flags.network_backend == DataPath::kUcx) {
    return absl::FailedPreconditionError(absl::StrCat(
        "UCX does not encrypt, so --network_backend=ucx and network encryption "
        "(",
        std::string(Name(mode)),
        ") exclude each other: give "
        "--network_backend=tcp, or auto to use UCX with nodes that do not "
        "encrypt"));
  }
  if (mode != EncryptionMode::kRequire || tls) return absl::OkStatus();
  const auto addresses = ParseAddresses("--coordinator", flags.coordinator);
  if (!addresses.ok()) return addresses.status();
  for (const Address& a : *addresses) {
    if (IsLoopback(a)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "required network encryption needs a coordinator with TLS, since names "
        "of tensors and the secrets for the keys go to ",
        a.Text(),
        " in the clear: give --tls_ca, --tls_cert and --tls_key, or encrypt "
        "only what goes from executor to executor (--network_encryption=on, "
        "maypolerun --encrypt=on)"));
  }
  return absl::OkStatus();
}

std::vector<std::string> ExecutorArguments(const WorkerFlags& f) {
  std::vector<std::string> arguments = {
      absl::StrCat("--coordinator=", f.coordinator),
      absl::StrCat("--node=", f.node),
      absl::StrCat("--host=", f.host),
      absl::StrCat("--network=", absl::StrJoin(f.networks, ",")),
      absl::StrCat("--network_backend=",
                   kDataPaths[static_cast<int>(f.network_backend)]),
      absl::StrCat("--network_connections=", f.network_connections),
      absl::StrCat("--network_levels=", f.network_levels),
      absl::StrCat("--network_congestion=", f.network_congestion),
      absl::StrCat("--network_encryption=",
                   std::string(Name(f.network_encryption))),
      absl::StrCat("--network_timeout=",
                   absl::FormatDuration(f.network_timeout)),
      absl::StrCat("--resume_timeout=", absl::FormatDuration(f.resume_timeout)),
      absl::StrCat("--coordinator_timeout=",
                   absl::FormatDuration(f.coordinator_timeout)),
      absl::StrCat("--start_timeout=", absl::FormatDuration(f.start_timeout)),
      absl::StrCat("--frozen_timeout=", absl::FormatDuration(f.frozen_timeout)),
      absl::StrCat("--chunk_bytes=", f.chunk_bytes),
      absl::StrCat("--ring_depth=", f.ring_depth),
      absl::StrCat("--arena_bytes=", f.arena_bytes),
      absl::StrCat("--slots=", f.slots),
      absl::StrCat("--state_bytes=", f.state_bytes),
      absl::StrCat("--state_timeout=", absl::FormatDuration(f.state_timeout)),
      absl::StrCat("--newest_protocol=", f.versions.newest),
      absl::StrCat("--log_level=", f.log_level)};
  if (f.log_hide_time) arguments.emplace_back("--log_hide_time");
  return arguments;
}

}  // namespace maypole::worker
