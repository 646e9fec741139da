// maypole-coordinator: reads its flags, serves, and ends on SIGTERM or SIGINT.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/absl_status.h"
#include "common/fd.h"
#include "common/limits.h"
#include "common/log_value.h"
#include "common/program/address.h"
#include "common/program/arguments.h"
#include "common/program/process.h"
#include "common/program/secret_file.h"
#include "common/program/tls.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/version.h"
#include "coordinator/service/server.h"
#include "grpc/support/log.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0",
          "HOST:PORT for executors and maypolectl; port 0 takes a free one "
          "(see --announce_fd). Any but a loopback address needs "
          "--secret_file or TLS.");
ABSL_FLAG(std::string, metrics, "127.0.0.1:0",
          "HOST:PORT where Prometheus finds /metrics; empty for none.");
ABSL_FLAG(std::string, secret_file, "",
          "File (mode 0600) with the cluster secret in one line. Workers and "
          "maypolectl must present the same. Empty: no secret.");
ABSL_FLAG(
    std::string, tls_ca, "",
    "File (PEM) with the cluster's own CA. With --tls_cert and --tls_key: "
    "all calls use TLS, and every caller must show a certificate of this "
    "CA; maypolectl one with the name maypole-admin.");
ABSL_FLAG(std::string, tls_cert, "",
          "File (PEM) with this program's certificate, for the name or address "
          "that workers call it by.");
ABSL_FLAG(std::string, tls_key, "",
          "File (PEM, mode 0600) with the certificate's key.");
ABSL_FLAG(int, announce_fd, -1,
          "Descriptor to which one line 'listen=HOST:PORT metrics=HOST:PORT' "
          "is written when the coordinator is ready; it is closed then.");
ABSL_FLAG(absl::Duration, start_timeout, absl::Seconds(120),
          "How long the first ranks of a job wait for the others, if they do "
          "not say it themselves (MAYPOLE_START_TIMEOUT).");
ABSL_FLAG(absl::Duration, resume_timeout, absl::Seconds(3),
          "How long an executor whose connection broke may stay away before "
          "it counts as lost.");
ABSL_FLAG(absl::Duration, elastic_settle, absl::Seconds(1),
          "An elastic job that could have more ranks starts when so long "
          "nobody has come or gone.");
ABSL_FLAG(uint64_t, fusion_threshold, uint64_t{64} << 20,
          "Small tensors are fused until a run has so many bytes; 0 turns "
          "fusion off.");
ABSL_FLAG(std::string, log_level, "info",
          "Least level that is logged: trace, debug, info, warning, error, "
          "off.");

namespace maypole::coordinator {
namespace {

constexpr char kUsage[] =
    R"(maypole-coordinator: knows the members of Maypole training jobs and the order
in which their tensors are reduced. Run one per cluster; each node's
maypole-worker connects to it. It serves many jobs and keeps nothing on disk.

Usage:
  maypole-coordinator [flags]

Example:
  mkdir -p /etc/maypole
  (umask 077; openssl rand -hex 32 > /etc/maypole/secret)
  maypole-coordinator --listen=0.0.0.0:4001 --metrics=0.0.0.0:9401 \
      --secret_file=/etc/maypole/secret
  curl http://localhost:9401/metrics

SIGTERM and SIGINT end it with status 0: running jobs get an error that says so.
Log lines (key=value) go to stderr.

Flags:
)";

void PrintHelp() {
  std::printf("%s", kUsage);
  PrintFlags("coordinator/main.cc");
  std::printf(
      "\nLimits: %zu jobs, %zu executors, %d ranks of a job, %zu names of "
      "operations of a job.\n",
      kMaxJobs, kMaxSessions, kMaxRanks, kMaxOperations);
}

absl::Status SetUpLog() {
  auto logger = spdlog::stderr_logger_mt("coordinator");
  logger->set_pattern(
      "time=%Y-%m-%dT%H:%M:%S.%e%z level=%l program=maypole-coordinator %v");
  const std::string level = absl::GetFlag(FLAGS_log_level);
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level=", level,
                     " is none of trace, debug, info, warning, error, off"));
  }
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function([](gpr_log_func_args* args) {
    spdlog::debug("event=grpc text={}", LogValue(args->message));
  });
  return absl::OkStatus();
}

absl::StatusOr<Time> PositiveTime(const char* flag, absl::Duration duration) {
  if (duration <= absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", absl::FormatDuration(duration),
                     " must be more than 0 and at most a year"));
  }
  return Time(absl::ToInt64Nanoseconds(duration));
}

absl::StatusOr<ServerOptions> ReadFlags() {
  ServerOptions options;
  if (const int fd = absl::GetFlag(FLAGS_announce_fd);
      fd >= 0 && ::fcntl(fd, F_GETFD) < 0) {
    return ToAbsl(ErrnoStatus(errno, absl::StrCat("--announce_fd=", fd)));
  }
  auto listen = ParseAddress("--listen", absl::GetFlag(FLAGS_listen));
  if (!listen.ok()) return listen.status();
  options.listen = *listen;
  if (const std::string text = absl::GetFlag(FLAGS_metrics); !text.empty()) {
    auto metrics = ParseAddress("--metrics", text);
    if (!metrics.ok()) return metrics.status();
    options.metrics = *metrics;
  }
  if (const std::string path = absl::GetFlag(FLAGS_secret_file);
      !path.empty()) {
    auto secret = ReadSecretFile(path);
    if (!secret.ok()) return secret.status();
    options.secret = *secret;
  }
  auto tls =
      ReadTlsFiles(absl::GetFlag(FLAGS_tls_ca), absl::GetFlag(FLAGS_tls_cert),
                   absl::GetFlag(FLAGS_tls_key));
  if (!tls.ok()) return tls.status();
  options.tls = *std::move(tls);
  if (options.secret.empty() && !options.tls.enabled() &&
      !IsLoopback(options.listen)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", options.listen.Text(),
                     " can be reached from other machines; give --secret_file, "
                     "or --tls_ca, --tls_cert and --tls_key, or listen on "
                     "127.0.0.1"));
  }
  auto start =
      PositiveTime("--start_timeout", absl::GetFlag(FLAGS_start_timeout));
  if (!start.ok()) return start.status();
  auto resume =
      PositiveTime("--resume_timeout", absl::GetFlag(FLAGS_resume_timeout));
  if (!resume.ok()) return resume.status();
  auto settle =
      PositiveTime("--elastic_settle", absl::GetFlag(FLAGS_elastic_settle));
  if (!settle.ok()) return settle.status();
  options.config.start_timeout = *start;
  options.config.resume_timeout = *resume;
  options.config.elastic_settle = *settle;
  options.config.fusion_threshold = absl::GetFlag(FLAGS_fusion_threshold);
  return options;
}

absl::Status Announce(const Server& server) {
  const int number = absl::GetFlag(FLAGS_announce_fd);
  if (number < 0) return absl::OkStatus();
  const Fd fd(number);
  const std::string line = absl::StrCat(
      "listen=", server.listen().Text(),
      " metrics=", server.metrics() ? server.metrics()->Text() : std::string(),
      "\n");
  if (::write(fd.get(), line.data(), line.size()) !=
      static_cast<ssize_t>(line.size())) {
    return ToAbsl(ErrnoStatus(errno, absl::StrCat("--announce_fd=", number)));
  }
  return absl::OkStatus();
}

absl::Status Run(const ServerOptions& options) {
  // All threads inherit the mask; only sigwait below takes them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);
  LeaveNoCore();
  RaiseOpenFiles();

  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) return server.status();
  spdlog::info(
      "event=started version={} protocol={} pid={} listen={} metrics={} "
      "secret={} tls={}",
      kVersion, kProtocolVersion, getpid(), (*server)->listen().Text(),
      (*server)->metrics() ? (*server)->metrics()->Text() : "none",
      options.secret.empty() ? "no" : "yes",
      options.tls.enabled() ? "yes" : "no");
  const absl::Status announced = Announce(**server);
  if (!announced.ok()) return announced;
  int signal_number = 0;
  sigwait(&ends, &signal_number);
  spdlog::info("event=stopping signal={}", strsignal(signal_number));
  (*server)->Shutdown();
  spdlog::info("event=stopped");
  return absl::OkStatus();
}

}  // namespace
}  // namespace maypole::coordinator

int main(int argc, char** argv) {
  using maypole::coordinator::kVersion;
  if (maypole::WantsHelp(argc, argv)) {
    maypole::coordinator::PrintHelp();
    return 0;
  }
  absl::FlagsUsageConfig usage;
  usage.version_string = [] {
    return absl::StrCat("maypole-coordinator ", kVersion, "\n");
  };
  absl::SetFlagsUsageConfig(usage);
  const auto fail = [](const absl::Status& status, int code) {
    std::fprintf(stderr, "maypole-coordinator: %s\n",
                 std::string(status.message()).c_str());
    return code;
  };
  absl::Status status = maypole::CheckArguments(argc, argv);
  if (!status.ok()) return fail(status, maypole::kUsageError);
  absl::ParseCommandLine(argc, argv);
  status = maypole::coordinator::SetUpLog();
  if (!status.ok()) return fail(status, maypole::kUsageError);
  const auto options = maypole::coordinator::ReadFlags();
  if (!options.ok()) return fail(options.status(), maypole::kUsageError);
  status = maypole::coordinator::Run(*options);
  return status.ok() ? 0 : fail(status, 1);
}
