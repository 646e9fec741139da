#include "worker/program.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "common/log_value.h"
#include "common/metrics/process.h"
#include "common/metrics/server.h"
#include "common/program/address.h"
#include "common/program/process.h"
#include "common/program/secret_file.h"
#include "common/system/fd.h"
#include "common/system/kernel_calls.h"
#include "common/wire/session_messages.h"
#include "worker/agent/metrics.h"
#include "worker/agent/sealed_tls.h"
#include "worker/agent/supervisor.h"
#include "worker/executor_main.h"
#include "worker/flags.h"

namespace maypole::worker {
namespace {

void SetUpLog(const WorkerFlags& flags) {
  auto logger = spdlog::stderr_logger_mt("maypole");
  logger->set_pattern(absl::StrCat(flags.log_hide_time ? "" : kLogTime,
                                   "level=%l ", "program=maypole-",
                                   flags.executor ? "executor" : "worker",
                                   " pid=%P node=", flags.node, " %v"));
  logger->set_level(spdlog::level::from_str(flags.log_level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function([](gpr_log_func_args* args) {
    spdlog::debug("event=grpc text={}", LogValue(args->message));
  });
}

// Call before any thread starts: all threads inherit the signal mask.
Fd CatchStopSignals(bool executor) {
  signal(SIGPIPE, SIG_IGN);
  // A file size limit (ulimit -f) then fails the call, which is reported.
  signal(SIGXFSZ, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (executor) {
    // Ctrl-C signals all processes of the terminal; the supervisor ends us.
    signal(SIGINT, SIG_IGN);
  } else {
    sigaddset(&set, SIGINT);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

// Returns null if `text` is empty: the agent then serves no metrics.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const std::string& text, std::shared_ptr<WorkerMetrics> metrics,
    std::string* bound) {
  if (text.empty()) return nullptr;
  absl::StatusOr<Address> address = ParseAddress("--metrics", text);
  if (!address.ok()) return address.status();
  auto server = MetricsServer::Start(
      *address, {std::move(metrics), std::make_shared<ProcessMetrics>()});
  if (server.ok()) *bound = Address{address->host, (*server)->port()}.Text();
  return server;
}

// Writes lines to --announce_fd. The executors do not inherit it, and a reader
// that is gone or slow does not block the agent.
class Announcer {
 public:
  explicit Announcer(const WorkerFlags& flags)
      : fd_(flags.announce_fd), ranks_(flags.announce_ranks) {
    if (fd_.valid()) fcntl(fd_.get(), F_SETFD, FD_CLOEXEC);
  }

  void SayReady(const std::string& line) {
    Say(line);
    if (!ranks_) fd_.Reset();
  }

  // An elastic rank has no number yet.
  void SayRank(const session::Hello& hello) {
    if (hello.elastic != 0) return;
    Say(absl::StrCat("rank=", hello.rank, " job=", hello.job, "\n"));
  }

 private:
  void Say(const std::string& line) {
    if (!fd_.valid()) return;
    pollfd ready{fd_.get(), POLLOUT, 0};
    if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLERR) == 0 &&
        write(fd_.get(), line.data(), line.size()) >= 0) {
      return;
    }
    spdlog::warn("event=announce_failed fd={}", fd_.get());
    fd_.Reset();
  }

  Fd fd_;
  const bool ranks_;
};

absl::Status SupervisorMain(const WorkerFlags& flags, Fd stop_signals) {
  if (const Status s = CheckKernelCalls(); !s.ok()) return ToAbsl(s);
  if (const std::string warning = SecretWarning(flags.secret);
      !warning.empty()) {
    spdlog::warn("event=weak_secret text={}", LogValue(warning));
  }
  auto metrics = std::make_shared<WorkerMetrics>();
  absl::StatusOr<Fd> tls = SealTls(flags.tls);
  if (!tls.ok()) return tls.status();
  Announcer announcer(flags);
  Supervisor supervisor(
      {.socket = flags.socket,
       .secret = flags.secret,
       .share_secret = flags.share_secret,
       .tls = *std::move(tls),
       .executor_arguments = ExecutorArguments(flags),
       .speaker = {"maypole-worker on node " + flags.node, flags.versions},
       .on_rank = [&](const session::Hello& h) { announcer.SayRank(h); }},
      metrics);
  if (absl::Status s = supervisor.Listen(); !s.ok()) return s;
  std::string bound;
  const auto server = ServeMetrics(flags.metrics, metrics, &bound);
  if (!server.ok()) return server.status();
  spdlog::info("event=ready socket={} coordinator={} metrics={}",
               LogValue(flags.socket), flags.coordinator, bound);
  // The path comes last because it may contain spaces.
  announcer.SayReady(
      absl::StrCat("metrics=", bound, " socket=", flags.socket, "\n"));
  absl::Status s = supervisor.Run(std::move(stop_signals));
  spdlog::info("event=end");
  return s;
}

}  // namespace

int Main(const std::vector<std::string>& args) {
  const absl::StatusOr<WorkerFlags> flags = ReadFlags(args);
  if (!flags.ok()) {
    return PrintError("maypole-worker", FromAbsl(flags.status()), kUsageError);
  }
  if (flags->answer) return PrintAnswer(*flags->answer);
  LeaveNoCore();
  ExplainTermination("maypole-worker");
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

}  // namespace maypole::worker
