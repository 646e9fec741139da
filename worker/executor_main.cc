#include "worker/executor_main.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/absl_status.h"
#include "common/board/board.h"
#include "common/encryption_mode.h"
#include "common/gpu/nccl/nccl.h"
#include "common/gpu/runner/gpu_runner.h"
#include "common/log_value.h"
#include "common/wire/job_variables.h"
#include "common/wire/unix_socket.h"
#include "worker/agent/control.h"
#include "worker/agent/sealed_tls.h"
#include "worker/backend/tcp_backend.h"
#include "worker/backend/ucx/ucx.h"
#include "worker/core/limits.h"
#include "worker/executor/become_user.h"
#include "worker/executor/executor.h"
#include "worker/executor/nccl_environment.h"
#include "worker/network/grpc_transport.h"
#include "worker/network/route.h"

namespace maypole::worker {
namespace {

// Generous, because the supervisor writes Setup before it starts this process.
constexpr int kSetupTimeoutMs = 10000;

// From now on other processes of this user cannot read this one's memory.
void Protect() {
  if (prctl(PR_SET_DUMPABLE, 0) == 0) return;
  spdlog::warn("event=not_protected reason={}", LogValue(strerror(errno)));
}

absl::StatusOr<control::Setup> ReadSetup(int fd) {
  Received message;
  const Status s =
      ReceiveMessage(fd, control::kMaxMessageBytes, kSetupTimeoutMs, &message);
  if (!s.ok()) return ToAbsl(s);
  control::Setup setup;
  if (message.data.size() != sizeof(setup)) {
    return absl::InvalidArgumentError(
        "--executor is internal: only maypole-worker may pass it");
  }
  std::memcpy(&setup, message.data.data(), sizeof(setup));
  return setup;
}

void Refuse(int client, uint32_t version, const absl::Status& why) {
  auto refused = session::Make<session::Refused>();
  refused.header.version = version;
  refused.code = static_cast<uint32_t>(why.code());
  session::SetText(refused.text, std::string(why.message()));
  (void)SendMessage(client, &refused, sizeof(refused));
}

// Ends this process, which cannot serve its job. Clients that were handed over
// get a Refused with the reason.
[[noreturn]] void RefuseAllAndEnd(int control, const absl::Status& why) {
  // From now on the agent itself refuses new clients of this job.
  shutdown(control, SHUT_RD);
  Received message;
  while (ReceiveMessage(control, control::kMaxMessageBytes, 0, &message).ok() &&
         !message.data.empty()) {
    control::HandOver client;
    if (message.fds.empty() || message.data.size() != sizeof(client)) continue;
    std::memcpy(&client, message.data.data(), sizeof(client));
    Refuse(message.fds[0].get(), client.hello.header.version, why);
  }
  _exit(1);  // a thread may hang in the directory service
}

ExecutorCoreOptions MakeCoreOptions(const WorkerFlags& f,
                                    const control::Setup& setup) {
  ExecutorCoreOptions o;
  o.job = setup.job;
  o.node = f.node;
  o.host = f.host;
  o.slots = f.slots;
  o.chunk_bytes = f.chunk_bytes;
  o.ring_depth = f.ring_depth;
  o.arena_bytes = f.arena_bytes;
  o.state_bytes = f.state_bytes;
  o.state_timeout_ms = absl::ToInt64Milliseconds(f.state_timeout);
  o.start_timeout_ms = absl::ToInt64Milliseconds(f.start_timeout);
  o.frozen_timeout_ms = absl::ToInt64Milliseconds(f.frozen_timeout);
  o.resume_timeout_ms = absl::ToInt64Milliseconds(f.resume_timeout);
  o.coordinator_timeout_ms = absl::ToInt64Milliseconds(f.coordinator_timeout);
  o.versions = f.versions;
  return o;
}

GrpcTransportOptions MakeTransportOptions(const WorkerFlags& f,
                                          const control::Setup& setup,
                                          const TlsOptions& tls) {
  GrpcTransportOptions o;
  o.credential = setup.credential;
  o.tls = tls;
  o.hello.set_protocol_version(f.versions.oldest);
  o.hello.set_newest_version(f.versions.newest);
  o.hello.set_job(setup.job);
  o.hello.set_token(setup.token);
  o.hello.set_node(f.node);
  o.hello.set_host(f.host);
  o.connect_timeout = absl::ToChronoMilliseconds(f.resume_timeout);
  return o;
}

// The stricter of the agent's flag and the variable of the job's first rank.
absl::StatusOr<EncryptionMode> JobEncryption(const WorkerFlags& f, bool tls) {
  const char* const variable = std::getenv(kEncryptionVariable);
  EncryptionMode mode;
  const Status s = ParseEncryptionMode(
      kEncryptionVariable, variable == nullptr ? "" : variable, &mode);
  if (!s.ok()) return ToAbsl(s);
  mode = std::max(mode, f.network_encryption);
  const absl::Status possible = CheckEncryption(mode, f, tls);
  if (!possible.ok()) return possible;
  return mode;
}

std::unique_ptr<Backend> MakeBackend(const WorkerFlags& f,
                                     const control::Setup& setup,
                                     EncryptionMode encryption,
                                     const PrepareBackend& prepare,
                                     StatsPage* stats) {
  TcpBackendOptions o;
  o.hosts = f.networks;
  // The machines of several coordinators are in one network.
  o.find_host = [first = f.coordinator.substr(0, f.coordinator.find(',')),
                 others = prepare.node_addresses](const auto& stopped) {
    return FindUntil(stopped,
                     [first, others] { return OwnAddress(first, others); });
  };
  o.nonce =
      HashBytes(absl::StrCat(setup.token, "/", setup.job, "/", prepare.epoch));
  o.node_names = prepare.node_names;
  o.early_bytes = uint64_t{kMaxRingDepth} * f.chunk_bytes;
  o.congestion = f.network_congestion;
  o.connections = f.network_connections;
  o.encryption = encryption;
  o.on_encrypted = [job = setup.job, epoch = prepare.epoch, encryption,
                    stats](const EncryptedNodes& nodes) {
    stats->peer_nodes = nodes.encrypted + nodes.clear;
    stats->encrypted_nodes = nodes.encrypted;
    spdlog::info(
        "event=network_encryption job={} epoch={} mode={} encrypted_nodes={} "
        "clear_nodes={} suite={}",
        job, epoch, Name(encryption), nodes.encrypted, nodes.clear,
        nodes.suite.empty() ? "none" : nodes.suite);
    if (encryption == EncryptionMode::kOff || nodes.clear == 0) return;
    spdlog::warn("event=nodes_in_the_clear job={} epoch={} nodes={}", job,
                 epoch, nodes.clear);
  };
  o.data_path = f.network_backend;
  o.on_data_paths = [job = setup.job, epoch = prepare.epoch,
                     stats](const DataPaths& paths) {
    stats->ucx_nodes = paths.ucx;
    spdlog::info(
        "event=network_backend job={} epoch={} ucx_nodes={} tcp_nodes={} "
        "why_tcp={}",
        job, epoch, paths.ucx, paths.tcp,
        paths.why.empty() ? "none" : LogValue(paths.why));
  };
  o.on_moved = [job = setup.job, epoch = prepare.epoch,
                names = prepare.node_names,
                stats](uint32_t node, const std::string& address, bool back) {
    if (back) {
      spdlog::info("event=connection_back job={} epoch={} peer={} address={}",
                   job, epoch, LogValue(names[node]), address);
      return;
    }
    StatsPage::Add(stats->moved_connections, 1);
    spdlog::warn("event=connection_moved job={} epoch={} peer={} address={}",
                 job, epoch, LogValue(names[node]), address);
  };
  o.max_levels = f.network_levels;
  o.on_measured = [job = setup.job, epoch = prepare.epoch,
                   names = prepare.node_names, self = prepare.node_index,
                   stats](const AgreedLinks& links) {
    spdlog::info(
        "event=links job={} epoch={} latency_us={:.1f} message_us={:.1f} "
        "wire_us_per_mib={:.1f} reduce_us_per_mib={:.1f} max_levels={}",
        job, epoch, 1e-3 * links.costs.latency, 1e-3 * links.costs.message,
        1e-3 * links.costs.wire, 1e-3 * links.costs.reduce, links.max_levels);
    const auto speed = [&](uint32_t node) {
      return 1e9 * (1 << 20) / static_cast<double>(links.wires[node]);
    };
    if (links.wires.size() > 1) {
      stats->wire_bytes_per_s = static_cast<uint64_t>(speed(self));
    }
    // On the node itself, and once for all on the first one.
    for (const uint32_t node : SlowWires(links.wires)) {
      if (node != self && self != 0) continue;
      spdlog::warn("event=slow_wire job={} epoch={} node={} mbit_s={:.0f}", job,
                   epoch, LogValue(names[node]), 8e-6 * speed(node));
    }
  };
  o.answer_timeout = absl::ToChronoMilliseconds(f.network_timeout);
  return std::make_unique<TcpBackend>(std::move(o));
}

// Returns the NCCL with which GPUs reduce together, or null if there is no NCCL
// or no driver.
const nccl::Nccl* FindNccl(const std::string& job) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return nullptr;  // the usual case: no GPUs, no line
  dlclose(driver);
  const char* const given = std::getenv(session::kNcclLibraryVariable);
  const std::string library = given == nullptr ? "" : given;
  if (library == "none") return nullptr;
  const nccl::Nccl* found = nullptr;
  Status s = nccl::OpenNccl(library, &found);
  // A rank in a container may name a file that is not here.
  if (!s.ok() && !library.empty()) {
    spdlog::warn("event=no_nccl job={} reason={}", job, LogValue(s.message()));
    s = nccl::OpenNccl("", &found);
  }
  if (s.ok()) {
    spdlog::info("event=nccl job={} version={} path={}", job,
                 nccl::NcclVersion(found->version), LogValue(found->path));
    return found;
  }
  spdlog::warn("event=no_nccl job={} reason={}", job, LogValue(s.message()));
  return nullptr;
}

}  // namespace

absl::Status ExecutorMain(const WorkerFlags& flags, Fd stop_signals) {
  prctl(PR_SET_NAME, "maypole-exec");
  SetNcclEnvironment(flags.networks);
  if (flags.network_backend != DataPath::kTcp) SetUcxEnvironment();
  Fd control(flags.control_fd);
  Fd stats_fd(flags.stats_fd);
  Fd tls_fd(flags.tls_fd);
  if (fcntl(control.get(), F_SETFD, FD_CLOEXEC) != 0 ||
      fcntl(stats_fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError(
        "--executor is internal: only maypole-worker may pass it");
  }
  Protect();  // before this process reads its credentials
  absl::StatusOr<control::Setup> setup = ReadSetup(control.get());
  if (!setup.ok()) return setup.status();
  if (setup->change_user) {
    const absl::Status s = BecomeUser(
        setup->uid, setup->gid, std::chrono::milliseconds(kGroupLookupMs));
    if (!s.ok()) {
      spdlog::error("event=user_refused reason={}", LogValue(s.message()));
      RefuseAllAndEnd(control.get(), s);
    }
    Protect();  // the kernel reset it when the uid changed
  }
  absl::StatusOr<TlsOptions> tls = ReadSealedTls(std::move(tls_fd));
  if (!tls.ok()) return tls.status();
  const absl::StatusOr<EncryptionMode> encryption =
      JobEncryption(flags, tls->enabled());
  if (!encryption.ok()) {
    const absl::Status& s = encryption.status();
    spdlog::error("event=encryption_refused job={} reason={}", setup->job,
                  LogValue(s.message()));
    RefuseAllAndEnd(control.get(), s);
  }
  absl::StatusOr<SharedStats> stats = SharedStats::Attach(std::move(stats_fd));
  if (!stats.ok()) return stats.status();
  ExecutorOptions options;
  options.core = MakeCoreOptions(flags, *setup);
  options.core.nccl_between_nodes = *encryption != EncryptionMode::kRequire;
  const nccl::Nccl* const nccl = FindNccl(options.core.job);
  if (nccl != nullptr) {
    options.core.nccl_version = static_cast<uint32_t>(nccl->version);
    const char* const host = std::getenv("NCCL_HOSTID");
    // 0 means that it is not set.
    if (host != nullptr) options.core.nccl_host = HashBytes(host) | 1;
  }
  const auto coordinators = std::make_shared<CoordinatorChoice>(
      absl::StrSplit(flags.coordinator, ','));  // checked by ReadFlags()
  options.make_transport = [&](TransportCallbacks callbacks) {
    GrpcTransportOptions o = MakeTransportOptions(flags, *setup, *tls);
    o.coordinators = coordinators;
    return std::make_unique<GrpcTransport>(std::move(o), std::move(callbacks));
  };
  StatsPage* const page = &**stats;  // also of what `stats` is moved to
  options.make_backend = [&, page](const PrepareBackend& prepare) {
    return MakeBackend(flags, *setup, *encryption, prepare, page);
  };
  options.make_gpus = [nccl](EpochGpus::Callbacks callbacks) {
    return std::make_unique<GpuRunner>(std::move(callbacks),
                                       nccl == nullptr ? "" : nccl->path);
  };
  Executor executor(std::move(options), std::move(control), *std::move(stats));
  return executor.Run(std::move(stop_signals));
}

}  // namespace maypole::worker
