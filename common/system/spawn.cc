#include "common/system/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "common/system/process_end.h"
#include "common/system/resource_limits.h"

extern char** environ;

namespace maypole {
namespace {

constexpr char kShell[] = "/bin/sh";
constexpr int kCannotRun = 127;
constexpr size_t kStackBytes = 64 * 1024;

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// What the child does until its program runs. It shares the parent's memory,
// while the parent's thread sleeps: so it allocates nothing and makes only
// system calls.
//
// Under qemu-user the child has a copy of the memory, and the parent's thread
// does not sleep: there the child reports by a pipe, which its program closes.
class ChildSetup {
 public:
  ChildSetup(const SpawnOptions& options, int report)
      : options_(options),
        report_(report),
        arguments_(Pointers(options.arguments)),
        copies_(options.descriptors.size()),
        parent_(getpid()) {
    if (options.environment) environment_ = Pointers(*options.environment);
    for (const SpawnDescriptor& d : options.descriptors) {
      above_ = std::max(above_, d.number + 1);
    }
    // The arguments with which the shell runs a script: path, then arguments.
    script_ = {const_cast<char*>(kShell),
               const_cast<char*>(options.program.c_str())};
    script_.insert(script_.end(), arguments_.begin() + 1, arguments_.end());
  }

  // 0 if the program runs, otherwise errno. Waits for the child if it shares no
  // memory. `report` is the reading end of its pipe; this process must have
  // closed the writing end.
  int Error(int report) const {
    if (started_) return error_;
    int error = 0;
    ssize_t n;
    do {
      n = read(report, &error, sizeof(error));
    } while (n < 0 && errno == EINTR);
    return n == sizeof(error) ? error : 0;
  }

  static int Run(void* self) {
    auto* const setup = static_cast<ChildSetup*>(self);
    setup->started_ = true;
    setup->Run();
    const int error = setup->error_;
    (void)!write(setup->report_, &error, sizeof(error));
    _exit(kCannotRun);
  }

 private:
  // Returns only if the program cannot be run.
  void Run() {
    if (!(SetDeathSignal() && SetGroup() && PlaceDescriptors() &&
          SetOpenFiles() && ResetSignals())) {
      error_ = errno;
      return;
    }
    char** const environment =
        options_.environment ? environment_.data() : environ;
    execve(options_.program.c_str(), arguments_.data(), environment);
    error_ = errno;
    if (error_ != ENOEXEC || !options_.run_scripts) return;
    error_ = 0;
    execve(kShell, script_.data(), environment);
    error_ = errno;
  }

  bool SetDeathSignal() {
    if (options_.death_signal == 0) return true;
    if (prctl(PR_SET_PDEATHSIG, options_.death_signal) != 0) return false;
    // The parent may have died before prctl().
    if (syscall(SYS_getppid) == parent_) return true;
    errno = ESRCH;
    return false;
  }

  bool SetGroup() {
    switch (options_.process_group) {
      case ProcessGroup::kInherit:
        return true;
      case ProcessGroup::kNew:
        return setpgid(0, 0) == 0;
      case ProcessGroup::kJoin:
        setpgid(0, options_.group);
        return true;
      case ProcessGroup::kNewSession:
        return setsid() >= 0;
    }
    return true;
  }

  // First copies all sources to numbers above all targets, because a target
  // number may be another one's source, or the report's.
  bool PlaceDescriptors() {
    const int report = fcntl(report_, F_DUPFD_CLOEXEC, above_);
    if (report < 0) return false;
    report_ = report;
    for (size_t i = 0; i < copies_.size(); ++i) {
      int fd = options_.descriptors[i].fd;
      if (fd == kDevNull) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
      copies_[i] = fcntl(fd, F_DUPFD_CLOEXEC, above_);
      if (copies_[i] < 0) return false;
    }
    for (size_t i = 0; i < copies_.size(); ++i) {
      if (dup2(copies_[i], options_.descriptors[i].number) < 0) return false;
    }
    return true;
  }

  bool SetOpenFiles() {
    return !options_.open_files ||
           setrlimit(RLIMIT_NOFILE, &*options_.open_files) == 0;
  }

  // No handler of the parent may run once signals are unblocked.
  bool ResetSignals() {
    for (int s = 1; s < NSIG; ++s) {
      struct sigaction action;
      if (sigaction(s, nullptr, &action) != 0) continue;  // the C library's own
      const auto& asked = options_.default_signals;
      if (action.sa_handler == SIG_IGN &&
          std::find(asked.begin(), asked.end(), s) == asked.end()) {
        continue;
      }
      action = {};
      action.sa_handler = SIG_DFL;
      sigaction(s, &action, nullptr);
    }
    sigset_t none;
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
  }

  const SpawnOptions& options_;
  int report_;  // the child's number for it, in the end
  std::vector<char*> arguments_;
  std::vector<char*> environment_;
  std::vector<char*> script_;
  std::vector<int> copies_;
  int above_ = 3;
  const pid_t parent_;
  volatile bool started_ = false;
  volatile int error_ = 0;
};

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Returns the child's pid, or -1 with errno set. *pidfd stays -1 on kernels
// that have none; those before 5.2 ignore CLONE_PIDFD, others refuse it.
pid_t Clone(ChildSetup* setup, std::byte* stack_end, bool watched, int* pidfd) {
  // CLONE_VFORK: this thread sleeps until the child runs its program.
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer assumes that every child has a copy of the memory, and
  // would then think that this process has no other threads.
  constexpr int kFlags = CLONE_VFORK | SIGCHLD;
#else
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | SIGCHLD;
#endif
  if (watched) {
    const pid_t pid =
        clone(&ChildSetup::Run, stack_end, kFlags | CLONE_PIDFD, setup, pidfd);
    if (pid >= 0 || !IsRefusal(errno)) return pid;
  }
  return clone(&ChildSetup::Run, stack_end, kFlags, setup);
}

void ReapNow(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Status Spawn(const SpawnOptions& options, Child* out) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "cannot start a process");
  }
  const Fd report_reader(report[0]);
  Fd report_writer(report[1]);
  ChildSetup setup(options, report_writer.get());
  const auto stack = std::make_unique<std::byte[]>(kStackBytes);
  int pidfd = -1;
  pid_t pid;
  int clone_error;
  {
    const SignalsBlocked blocked;
    pid = Clone(&setup, stack.get() + kStackBytes, options.watched, &pidfd);
    clone_error = errno;
  }
  Child child{.pid = pid, .end = Fd(pidfd)};
  if (pid < 0) {
    return ResourceStatus(clone_error, Needs::kProcess,
                          "cannot start a process");
  }
  report_writer.Reset();
  if (const int error = setup.Error(report_reader.get()); error != 0) {
    ReapNow(pid);
    return ErrnoStatus(error, "cannot run " + options.program);
  }
  if (options.watched && !child.end.valid()) {
    if (Status s = WatchChild(pid, &child.end); !s.ok()) {
      kill(pid, SIGKILL);
      ReapNow(pid);
      return s;
    }
  }
  *out = std::move(child);
  return Status();
}

}  // namespace maypole
