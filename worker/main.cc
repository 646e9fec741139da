// maypole-worker: the agent of one node (supervisor), and, started by itself
// with --executor, the executor of one job.
#include <grpc/support/log.h>
#include <prometheus/exposer.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/log_value.h"
#include "common/program/address.h"
#include "common/program/arguments.h"
#include "common/program/process.h"
#include "worker/executor_main.h"
#include "worker/flags.h"
#include "worker/session/metrics.h"
#include "worker/session/sealed_tls.h"
#include "worker/session/supervisor.h"

namespace maypole::worker {
namespace {

void SetUpLog(const WorkerFlags& flags) {
  auto logger = spdlog::stderr_logger_mt("maypole");
  logger->set_pattern(absl::StrCat("time=%Y-%m-%dT%H:%M:%S.%e%z level=%l ",
                                   "program=maypole-",
                                   flags.executor ? "executor" : "worker",
                                   " pid=%P node=", flags.node, " %v"));
  logger->set_level(spdlog::level::from_str(flags.log_level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function([](gpr_log_func_args* args) {
    spdlog::debug("event=grpc text={}", LogValue(args->message));
  });
}

// Before any thread starts: all of them inherit the mask.
Fd CatchStopSignals(bool executor) {
  signal(SIGPIPE, SIG_IGN);
  // A limit of file size (ulimit -f) makes calls fail, and is then reported.
  signal(SIGXFSZ, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (executor) {
    // Ctrl-C reaches the whole terminal; the supervisor decides.
    signal(SIGINT, SIG_IGN);
  } else {
    sigaddset(&set, SIGINT);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

absl::StatusOr<std::unique_ptr<prometheus::Exposer>> ServeMetrics(
    const std::string& address, std::shared_ptr<WorkerMetrics> metrics,
    std::string* bound) {
  if (address.empty()) return nullptr;
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address, 1);
    exposer->RegisterCollectable(metrics);
    const std::string host = address.substr(0, address.rfind(':'));
    *bound = absl::StrCat(host, ":", exposer->GetListeningPorts().at(0));
    return exposer;
  } catch (const std::exception&) {
    const absl::StatusOr<Address> parsed = ParseAddress("--metrics", address);
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics: ", parsed.ok() ? WhyNotBound(*parsed) : address,
        "; choose another --metrics, or end the program that holds the port"));
  }
}

void Announce(int fd, const std::string& line) {
  if (fd < 0) return;
  const Fd owner(fd);
  if (write(fd, line.data(), line.size()) < 0) {
    spdlog::warn("event=announce_failed fd={}", fd);
  }
}

absl::Status SupervisorMain(const WorkerFlags& flags, Fd stop_signals) {
  auto metrics = std::make_shared<WorkerMetrics>();
  absl::StatusOr<Fd> tls = SealTls(flags.tls);
  if (!tls.ok()) return tls.status();
  Supervisor supervisor(
      {flags.socket, flags.secret, *std::move(tls), ExecutorArguments(flags)},
      metrics);
  if (absl::Status s = supervisor.Listen(); !s.ok()) return s;
  std::string bound;
  const auto exposer = ServeMetrics(flags.metrics, metrics, &bound);
  if (!exposer.ok()) return exposer.status();
  spdlog::info("event=ready socket={} coordinator={} metrics={}",
               LogValue(flags.socket), flags.coordinator, bound);
  Announce(flags.announce_fd,
           // A path may hold spaces: it is the rest of the line.
           absl::StrCat("metrics=", bound, " socket=", flags.socket, "\n"));
  absl::Status s = supervisor.Run(std::move(stop_signals));
  spdlog::info("event=end");
  // The socket is gone and the executors have ended. The rest is the metrics
  // server, whose threads take two seconds to stop: the kernel is faster.
  if (s.ok()) _exit(0);
  return s;
}

int Main(int argc, char** argv) {
  if (WantsHelp(argc, argv)) {
    PrintHelp();
    return 0;
  }
  const absl::StatusOr<WorkerFlags> flags = ReadFlags(argc, argv);
  if (!flags.ok()) {
    std::fprintf(stderr, "maypole-worker: %s\n",
                 std::string(flags.status().message()).c_str());
    return kUsageError;
  }
  LeaveNoCore();
  RaiseOpenFiles();
  Fd stop_signals = CatchStopSignals(flags->executor);
  SetUpLog(*flags);
  const absl::Status s = flags->executor
                             ? ExecutorMain(*flags, std::move(stop_signals))
                             : SupervisorMain(*flags, std::move(stop_signals));
  if (s.ok()) return 0;
  spdlog::error("event=failed reason={}", LogValue(s.message()));
  return 1;
}

}  // namespace
}  // namespace maypole::worker

int main(int argc, char** argv) { return maypole::worker::Main(argc, argv); }
