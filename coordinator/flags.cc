#include "coordinator/flags.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "common/command_line/daemon_value.h"
#include "common/limits.h"
#include "common/program/address.h"
#include "common/program/secret_file.h"
#include "common/program/tls.h"
#include "common/version.h"
#include "coordinator/core/limits.h"

namespace maypole::coordinator {
namespace {

constexpr char kAbout[] =
    R"(maypole-coordinator: starts Maypole training jobs of several nodes, and decides
the order in which their tensors are reduced. Run one per cluster, or several
with --etcd, of which one leads; each node's maypole-worker connects to it. It
serves many jobs and keeps nothing on disk.

Usage:
  maypole-coordinator [flags]

Example:
  mkdir -p /etc/maypole
  (umask 077; openssl rand -hex 32 > /etc/maypole/secret)
  maypole-coordinator --listen=0.0.0.0:4001 --metrics=0.0.0.0:9401 \
      --secret_file=/etc/maypole/secret
  curl http://localhost:9401/metrics

SIGTERM and SIGINT end it with status 0: running jobs get an error that says so,
unless another coordinator can lead. Status 75: it has led, and its lease has
ended; start it again (systemd: Restart=on-failure).
Log lines (key=value) go to stderr.
)";

std::string Limits() {
  return absl::StrCat("Limits: ", kMaxJobs, " jobs, ", kMaxSessions,
                      " executors, ", kMaxRanks, " ranks of a job,\n",
                      kMaxOperations, " names of operations of a job.");
}

// The values of the flags before they are converted.
struct Texts {
  std::string listen = "127.0.0.1:0";
  std::string metrics = "127.0.0.1:0";
  std::string dashboard;
  std::string secret_file;
  std::string operator_secret_file;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  absl::Duration start_timeout = absl::Seconds(120);
  absl::Duration resume_timeout = absl::Seconds(3);
  absl::Duration elastic_settle = absl::Seconds(1);
  ElectionTexts election;
};

void Define(Texts* texts, CoordinatorFlags* flags, CommandLine* line) {
  line->Add({"--listen"}, TextValue(&texts->listen, "HOST:PORT"),
            "address for executors and maypolectl; port 0 chooses a free port "
            "(see --announce_fd). An address other than loopback needs "
            "--secret_file or TLS");
  line->Add({"--metrics"}, TextValue(&texts->metrics, "HOST:PORT"),
            "address of the Prometheus endpoint /metrics; empty: none");
  line->Add({"--dashboard"}, TextValue(&texts->dashboard, "HOST:PORT"),
            "address of the dashboard, a web page for which maypolectl "
            "dashboard prints a link; empty: none");
  line->Add({"--secret_file"}, FileValue(&texts->secret_file),
            "file (mode 0600) with the cluster secret in one line; workers "
            "must have the same. Empty: no secret");
  line->Add({"--operator_secret_file"}, FileValue(&texts->operator_secret_file),
            "file (mode 0600) with another secret, which maypolectl must show "
            "then; without it, the cluster secret is enough for maypolectl");
  line->Add({"--tls_ca"}, FileValue(&texts->tls_ca),
            "file (PEM) with the cluster's own CA. With --tls_cert and "
            "--tls_key all calls use TLS, and every caller must show a "
            "certificate of this CA; that of maypolectl must have the common "
            "name maypole-admin");
  line->Add({"--tls_cert"}, FileValue(&texts->tls_cert),
            "file (PEM) with this program's certificate, for the name or "
            "address under which workers call it");
  line->Add({"--tls_key"}, FileValue(&texts->tls_key),
            "file (PEM, mode 0600) with the certificate's key");
  DefineElection(&texts->election, line);
  line->Add({"--announce_fd"},
            IntegerValue(&flags->announce_fd, -1).WithDefault(""),
            "descriptor to which one line 'listen=HOST:PORT metrics=HOST:PORT' "
            "is written when the coordinator is ready; it is closed then");
  line->Add({"--start_timeout"},
            DurationValue(&texts->start_timeout, kShortestDuration, kYear),
            "how long the first ranks of a job wait for the others, unless "
            "they set MAYPOLE_START_TIMEOUT");
  line->Add({"--resume_timeout"},
            DurationValue(&texts->resume_timeout, kShortestDuration, kYear),
            "how long an executor may take to reconnect after its connection "
            "broke, before it counts as lost");
  line->Add({"--elastic_settle"},
            DurationValue(&texts->elastic_settle, kShortestDuration, kYear),
            "an elastic job with fewer ranks than its maximum starts for the "
            "first time when no rank has joined or left for this long");
  line->Add({"--fusion_threshold"},
            IntegerValue(&flags->server.config.fusion_threshold, uint64_t{0}),
            "small tensors are fused into runs of up to this many bytes; 0: no "
            "fusion");
  line->Add({"--frozen_nodes"},
            IntegerValue(&flags->server.config.frozen_nodes, size_t{0}),
            "jobs execute equal steps without the coordinator (the frozen "
            "tier): up to this many nodes tell each other what is ready, more "
            "do so through a tree; 0: no job does");
  line->Add({"--eager_nodes"},
            IntegerValue(&flags->server.config.eager_nodes, size_t{0}),
            "in jobs on up to this many nodes, the inputs of small operations "
            "travel between the nodes before the coordinator has ordered them; "
            "0: in no job");
  line->Add({"--relay_nodes"},
            IntegerValue(&flags->server.config.relay_nodes, size_t{0}),
            "jobs on more nodes than this pass on, from node to node, what the "
            "coordinator sends to all of them; 0: no job does");
  line->Add({"--log_level"}, LogLevelValue(&flags->log_level),
            "lowest level that is logged: trace, debug, info, warning, error "
            "or off");
  line->Add({"--log_hide_time"}, SwitchValue(&flags->log_hide_time),
            "leave the time out of log lines, because the journal has it, for "
            "example");
  // Internal: tests pass it, to have trees of few nodes.
  line->Add(
      {"--fan_out"},
      IntegerValue(&flags->server.config.fan_out, uint32_t{1}, uint32_t{1024}),
      "");
  // Internal: tests pass it, to have a coordinator of the next version.
  line->Add(
      {"--newest_protocol"},
      IntegerValue(&flags->server.config.versions.newest,
                   kProtocolVersions.newest, kProtocolVersions.newest + 1),
      "");
}

absl::Status ReadAddresses(const Texts& texts, ServerOptions* options) {
  auto listen = ParseAddress("--listen", texts.listen);
  if (!listen.ok()) return listen.status();
  options->listen = *listen;
  for (const auto& [flag, text, address] :
       {std::tuple("--metrics", &texts.metrics, &options->metrics),
        std::tuple("--dashboard", &texts.dashboard, &options->dashboard)}) {
    if (text->empty()) continue;
    auto parsed = ParseAddress(flag, *text);
    if (!parsed.ok()) return parsed.status();
    *address = *parsed;
  }
  return absl::OkStatus();
}

absl::Status ReadSecrets(const Texts& texts, ServerOptions* options) {
  for (const auto& [path, secret] :
       {std::pair(&texts.secret_file, &options->secret),
        std::pair(&texts.operator_secret_file, &options->operator_secret)}) {
    if (path->empty()) continue;
    const Status read = ReadSecretFile(*path, secret);
    if (!read.ok()) return ToAbsl(read);
  }
  if (!options->secret.empty() && options->secret == options->operator_secret) {
    return absl::InvalidArgumentError(
        "--operator_secret_file must have another secret than --secret_file, "
        "which every agent knows (`openssl rand -hex 32` prints one)");
  }
  auto tls = ReadTlsFiles(texts.tls_ca, texts.tls_cert, texts.tls_key);
  if (!tls.ok()) return tls.status();
  options->tls = *std::move(tls);
  if (!options->secret.empty() || options->tls.enabled()) {
    return absl::OkStatus();
  }
  const auto loopback = [](const char* flag, const Address& address) {
    if (IsLoopback(address)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", address.Text(),
                     " can be reached from other machines; give --secret_file, "
                     "or --tls_ca, --tls_cert and --tls_key, or listen on "
                     "127.0.0.1"));
  };
  absl::Status status = loopback("--listen", options->listen);
  if (status.ok() && options->dashboard) {
    status = loopback("--dashboard", *options->dashboard);
  }
  return status;
}

}  // namespace

absl::StatusOr<CoordinatorFlags> ReadFlags(
    const std::vector<std::string>& args) {
  Texts texts;
  CoordinatorFlags flags;
  CommandLine line({.name = "maypole-coordinator",
                    .version = kVersion,
                    .about = kAbout,
                    .notes = Limits()});
  Define(&texts, &flags, &line);
  if (Status s = line.Parse(args, &flags.answer); !s.ok()) return ToAbsl(s);
  if (flags.answer) return flags;
  if (flags.announce_fd >= 0 && ::fcntl(flags.announce_fd, F_GETFD) < 0) {
    return ToAbsl(
        ErrnoStatus(errno, absl::StrCat("--announce_fd=", flags.announce_fd)));
  }
  absl::Status status = ReadAddresses(texts, &flags.server);
  if (status.ok()) status = ReadSecrets(texts, &flags.server);
  if (!status.ok()) return status;
  auto election = ReadElectionFlags(texts.election, flags.server.listen);
  if (!election.ok()) return election.status();
  flags.election = *std::move(election);
  Config& config = flags.server.config;
  config.start_timeout = absl::ToChronoNanoseconds(texts.start_timeout);
  config.resume_timeout = absl::ToChronoNanoseconds(texts.resume_timeout);
  config.elastic_settle = absl::ToChronoNanoseconds(texts.elastic_settle);
  return flags;
}

}  // namespace maypole::coordinator
