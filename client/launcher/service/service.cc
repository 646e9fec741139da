#include "client/launcher/service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "client/bootstrap/bootstrap_messages.h"
#include "client/launcher/process/process.h"
#include "client/launcher/service/service_directory.h"
#include "client/launcher/service/service_shell.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

// After the service was killed: how long daemons may take to report to ranks.
constexpr milliseconds kGrace{1000};
constexpr milliseconds kSweepLimit{1000};

void Report(Fd* fd, std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += "\n";
  [[maybe_unused]] const ssize_t n = write(fd->get(), line.data(), line.size());
  fd->Reset();
}

// Launchers signal whole groups and sessions, but the service must end only
// when its ranks have gone. Signals are blocked, not ignored: processes that we
// start get an empty mask.
void HoldSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) sigaddset(&set, s);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int Serve(const std::string& directory, Fd report) {
  NodeService service(directory);
  if (const Status s = service.Start(); !s.ok()) {
    Report(&report, s.message());
    return 1;
  }
  SweepBeside(directory);
  Report(&report, kServiceReady);
  service.Run();
  return 0;
}

void AwaitChildren(milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0 && errno == ECHILD) return;
    if (pid == 0) usleep(5000);
  }
}

// Starts the service, waits for its end and cleans up after it.
[[noreturn]] void Guard(const std::string& directory, Fd report) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t service = fork();
  if (service < 0) {
    Report(&report, std::string("fork: ") + strerror(errno));
    _exit(1);
  }
  if (service == 0) _exit(Serve(directory, std::move(report)));
  report.Reset();
  int status = 0;
  while (waitpid(service, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) {
    // The daemons got SIGTERM as their parent death signal.
    AwaitChildren(kGrace);
    KillDescendants({}, kSweepLimit);
  }
  // A service that exited with 0 has removed its directory itself, and the next
  // service may be using it already.
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    RemoveServiceDirectory(directory, kServiceLockFd);
  }
  _exit(0);
}

}  // namespace

int RunNodeService(const std::string& directory) {
  Fd report(kServiceReportFd);
  if (fcntl(kServiceReportFd, F_GETFD) < 0 ||
      fcntl(kServiceLockFd, F_GETFD) < 0 || directory.empty()) {
    report.Release();
    return 2;  // a user has started it, not a rank
  }
  // The lock is never closed: it is released when guard and service have ended.
  fcntl(kServiceReportFd, F_SETFD, FD_CLOEXEC);
  fcntl(kServiceLockFd, F_SETFD, FD_CLOEXEC);
  for (int fd = kServiceLockFd + 1; fd < 1024; ++fd) close(fd);
  HoldSignals();
  // The value of the rank that has started us may name only that rank's GPU;
  // the executors of the agent that we start serve all ranks of the node.
  unsetenv("CUDA_VISIBLE_DEVICES");
  const pid_t guard = fork();
  if (guard < 0) {
    Report(&report, std::string("fork: ") + strerror(errno));
    return 1;
  }
  if (guard == 0) Guard(directory, std::move(report));
  return 0;
}

}  // namespace maypole::launcher
