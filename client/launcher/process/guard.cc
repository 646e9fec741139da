#include "client/launcher/process/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "client/launcher/job/supervision.h"
#include "client/launcher/process/private_directory.h"
#include "client/launcher/process/process.h"

namespace maypole::launcher {
namespace {

constexpr std::chrono::milliseconds kSweepLimit{1000};

// Fills descriptors 0 to 2 if they are closed, so that no pipe gets these
// numbers. Writing there fails, as it does without a descriptor.
void FillStandardDescriptors() {
  int fd;
  do {
    fd = open("/dev/null", O_RDONLY);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

[[noreturn]] void Supervise(const Supervised& where,
                            const std::function<int(const Supervised&)>& work,
                            PrivateDirectory* directory) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != where.guard) _exit(1);  // there is no directory yet
  if (const Status status = directory->Create(); !status.ok()) {
    fprintf(stderr, "maypolerun: %s\n", status.message().c_str());
    _exit(1);
  }
  setpgid(0, 0);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTTOU, SIG_IGN);  // "stty tostop" must not stop our output
  int code = work({.directory = directory->path(),
                   .guard = where.guard,
                   .guard_group = where.guard_group});
  if (getppid() != where.guard) directory->Remove();  // the guard is gone
  _exit(code);
}

// Forwards signals until the supervisor has ended; returns its wait status.
int Watch(pid_t supervisor, const sigset_t& set) {
  while (true) {
    siginfo_t info;
    int s = sigwaitinfo(&set, &info);
    if (s < 0) continue;
    if (s != SIGCHLD) {
      sigval from_terminal = {.sival_int = info.si_code == SI_KERNEL ? 1 : 0};
      sigqueue(supervisor, s, from_terminal);
      continue;
    }
    int status = 0;
    if (waitpid(supervisor, &status, WNOHANG) == supervisor) return status;
  }
}

}  // namespace

int RunGuarded(bool needs_directory,
               const std::function<int(const Supervised&)>& work) {
  FillStandardDescriptors();
  // The supervisor creates it when each of the two can clean up after the
  // other; both know the name beforehand.
  PrivateDirectory directory(needs_directory);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t set = HandledSignals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, nullptr);

  pid_t guard = getpid();
  pid_t supervisor = fork();
  if (supervisor < 0) {
    fprintf(stderr, "maypolerun: fork: %s\n", strerror(errno));
    return 1;
  }
  if (supervisor == 0) {
    Supervise({.guard = guard, .guard_group = getpgid(guard)}, work,
              &directory);
  }
  int status = Watch(supervisor, set);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  Exit exit = {.signaled = true, .value = WTERMSIG(status)};
  KillDescendants({}, kSweepLimit);
  fprintf(stderr, "maypolerun: the supervisor (pid %d) %s; the job was ended\n",
          supervisor, Describe(exit).c_str());
  return exit.code();
}

}  // namespace maypole::launcher
