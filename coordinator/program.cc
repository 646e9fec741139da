#include "coordinator/program.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "common/limits.h"
#include "common/log_value.h"
#include "common/program/process.h"
#include "common/program/secret_file.h"
#include "common/system/fd.h"
#include "common/version.h"
#include "coordinator/candidacy.h"
#include "coordinator/flags.h"
#include "coordinator/service/server.h"
#include "grpc/support/log.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

void SetUpLog(const CoordinatorFlags& flags) {
  auto logger = spdlog::stderr_logger_mt("coordinator");
  logger->set_pattern(std::string(flags.log_hide_time ? "" : kLogTime) +
                      "level=%l program=maypole-coordinator %v");
  logger->set_level(spdlog::level::from_str(flags.log_level));
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function([](gpr_log_func_args* args) {
    spdlog::debug("event=grpc text={}", LogValue(args->message));
  });
}

absl::Status Announce(const Server& server, int number) {
  if (number < 0) return absl::OkStatus();
  const Fd fd(number);
  std::string line = absl::StrCat(
      "listen=", server.listen().Text(),
      " metrics=", server.metrics() ? server.metrics()->Text() : "");
  if (server.dashboard() != nullptr) {
    absl::StrAppend(&line, " dashboard=", server.dashboard()->address().Text());
  }
  line += "\n";
  if (::write(fd.get(), line.data(), line.size()) !=
      static_cast<ssize_t>(line.size())) {
    return ToAbsl(ErrnoStatus(errno, absl::StrCat("--announce_fd=", number)));
  }
  return absl::OkStatus();
}

absl::Status Run(const CoordinatorFlags& flags) {
  // All threads inherit the mask, so only sigwait() below takes these signals.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);
  LeaveNoCore();
  ExplainTermination("maypole-coordinator");
  RaiseOpenFiles();

  Candidacy candidacy;  // outlives the server
  ServerOptions options = flags.server;
  if (flags.election.enabled()) options.leadership = candidacy.leadership();
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) return server.status();
  spdlog::info(
      "event=started version={} protocol={} pid={} listen={} metrics={} "
      "dashboard={} secret={} operator_secret={} tls={}",
      kVersion, kProtocolVersion, getpid(), (*server)->listen().Text(),
      (*server)->metrics() ? (*server)->metrics()->Text() : "none",
      (*server)->dashboard() ? (*server)->dashboard()->address().Text()
                             : "none",
      options.secret.empty() ? "no" : "yes",
      options.operator_secret.empty() ? "no" : "yes",
      options.tls.enabled() ? "yes" : "no");
  for (const std::string& secret : {options.secret, options.operator_secret}) {
    const std::string warning = SecretWarning(secret);
    if (warning.empty()) continue;
    spdlog::warn("event=weak_secret text={}", LogValue(warning));
  }
  if (flags.election.enabled()) {
    const absl::Status stands = candidacy.Stand(flags.election,
                                                flags.election.advertise.empty()
                                                    ? (*server)->listen().Text()
                                                    : flags.election.advertise,
                                                (*server)->incarnation());
    if (!stands.ok()) return stands;
  }
  const absl::Status announced = Announce(**server, flags.announce_fd);
  if (!announced.ok()) return announced;
  int signal_number = 0;
  sigwait(&ends, &signal_number);
  spdlog::info("event=stopping signal={}", strsignal(signal_number));
  candidacy.leadership()->End();
  (*server)->Shutdown();
  candidacy.Resign();
  spdlog::info("event=stopped");
  return absl::OkStatus();
}

}  // namespace

int Main(const std::vector<std::string>& args) {
  constexpr char kProgram[] = "maypole-coordinator";
  const auto flags = ReadFlags(args);
  if (!flags.ok()) {
    return PrintError(kProgram, FromAbsl(flags.status()), kUsageError);
  }
  if (flags->answer) return PrintAnswer(*flags->answer);
  SetUpLog(*flags);
  const absl::Status status = Run(*flags);
  return status.ok() ? 0 : PrintError(kProgram, FromAbsl(status), 1);
}

}  // namespace maypole::coordinator
