#include "client/launcher/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace maypole::launcher {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) {
    pointers.push_back(const_cast<char*>(s.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Everything between fork and exec: only calls that are safe there.
class ChildSetup {
 public:
  ChildSetup(const SpawnSpec& spec, pid_t parent, int error_fd)
      : spec_(spec),
        argv_(Pointers(spec.argv)),
        environment_(Pointers(spec.environment)),
        parent_(parent),
        error_fd_(error_fd) {}

  [[noreturn]] void Run() const {
    if (prctl(PR_SET_PDEATHSIG, spec_.death_signal) != 0) Fail();
    if (getppid() != parent_) _exit(126);  // died before the line above
    // Not fatal: without it signals still reach the process itself.
    setpgid(0, spec_.group);
    ResetSignals();
    if (!Descriptors()) Fail();
    setrlimit(RLIMIT_NOFILE, &spec_.files);
    // Not execve: a script without "#!" runs by the shell, as users expect.
    execvpe(spec_.program.c_str(), argv_.data(), environment_.data());
    Fail();
  }

 private:
  static void ResetSignals() {
    for (int s : {SIGPIPE, SIGTTOU, SIGINT, SIGQUIT}) signal(s, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  bool Descriptors() const {
    int in = spec_.stdin_fd;
    if (in < 0) in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return in >= 0 && Place(in, 0) && Place(spec_.stdout_fd, 1) &&
           Place(spec_.stderr_fd, 2) &&
           (spec_.extra_fd < 0 || Place(spec_.extra_fd, 3));
  }

  static bool Place(int fd, int target) {
    if (fd == target) return fcntl(fd, F_SETFD, 0) == 0;
    return dup2(fd, target) == target;
  }

  [[noreturn]] void Fail() const {
    int error = errno;
    [[maybe_unused]] ssize_t n = write(error_fd_, &error, sizeof error);
    _exit(127);
  }

  const SpawnSpec& spec_;
  std::vector<char*> argv_;
  std::vector<char*> environment_;
  pid_t parent_;
  int error_fd_;
};

// Parent's process id of a process; -1 if it is gone.
pid_t ParentOf(const char* pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE* file = fopen(path, "re");
  if (file == nullptr) return -1;
  char text[512] = {};
  size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  // "pid (name) state ppid": the name may hold spaces and brackets.
  const char* bracket = strrchr(text, ')');
  int parent = -1;
  char state;
  if (bracket == nullptr || sscanf(bracket + 1, " %c %d", &state, &parent) != 2)
    return -1;
  return parent;
}

std::vector<pid_t> OwnChildren() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (ParentOf(entry->d_name) == getpid()) {
      children.push_back(atoi(entry->d_name));
    }
  }
  closedir(proc);
  return children;
}

Status CheckExecutable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0) {
    return ErrnoStatus(EACCES, path);
  }
  return Status();
}

}  // namespace

Status Spawn(const SpawnSpec& spec, Child* out) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  Fd reader(ends[0]), low(ends[1]);
  // Out of the way of the descriptors the child puts in place.
  Fd writer(fcntl(low.get(), F_DUPFD_CLOEXEC, 10));
  if (!writer.valid()) return ErrnoStatus(errno, "pipe");
  low.Reset();

  ChildSetup setup(spec, getpid(), writer.get());
  pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) setup.Run();

  writer.Reset();
  int error = 0;
  ssize_t n;
  do {
    n = read(reader.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    waitpid(pid, nullptr, 0);
    return ErrnoStatus(error, "cannot run " + spec.program);
  }
  out->pid = pid;
  // By number: glibc 2.36 declares pidfd_open() without extern "C".
  out->pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!out->pidfd.valid()) {
    Status status = ErrnoStatus(errno, "pidfd_open (Linux 5.3 or newer)");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return status;
  }
  return Status();
}

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGQUIT}) sigaddset(&set, s);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

std::optional<Exit> Reap(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return std::nullopt;
  if (WIFSIGNALED(status)) {
    return Exit{.signaled = true, .value = WTERMSIG(status)};
  }
  return Exit{.signaled = false, .value = WEXITSTATUS(status)};
}

void ReapOrphans(const std::set<pid_t>& known) {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == 0 || known.contains(info.si_pid)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

bool KillDescendants(const std::set<pid_t>& keep,
                     std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    bool any = false;
    for (pid_t pid : OwnChildren()) {
      if (keep.contains(pid)) continue;
      any = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    // Children of what died now are ours: look again.
    if (!any) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    poll(nullptr, 0, 2);
  }
}

Status FindProgram(const std::string& name, std::string* path) {
  if (name.find('/') != std::string::npos) {
    *path = name;
    return CheckExecutable(name);
  }
  const char* variable = getenv("PATH");
  std::string rest = variable == nullptr ? "/usr/bin:/bin" : variable;
  Status denied;
  while (true) {
    size_t colon = rest.find(':');
    std::string directory = rest.substr(0, colon);
    *path = (directory.empty() ? "." : directory) + "/" + name;
    Status status = CheckExecutable(*path);
    if (status.ok()) return status;
    if (status.code() == Code::kPermissionDenied) denied = status;
    if (colon == std::string::npos) break;
    rest.erase(0, colon + 1);
  }
  if (!denied.ok()) return denied;
  return Status(Code::kNotFound, name + ": not found on PATH");
}

}  // namespace maypole::launcher
