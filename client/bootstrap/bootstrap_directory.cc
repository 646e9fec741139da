#include "client/bootstrap/bootstrap_directory.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "client/bootstrap/bootstrap_messages.h"
#include "client/bootstrap/launcher_info.h"
#include "common/system/spawn.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kProgram[] = "maypolerun";

const char* Variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0 ? value : nullptr;
}

bool OwnDirectory(const char* path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
         st.st_uid == geteuid() && access(path, W_OK | X_OK) == 0;
}

bool SocketsFit(const std::string& directory) {
  return directory.size() + 1 + strlen(kServiceSocket) <
         sizeof(sockaddr_un::sun_path);
}

bool IsProgram(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

// The directory of the library (or program) that contains this code.
std::string OwnPlace() {
  Dl_info info;
  static const char here = 0;
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return "";
  char* real = realpath(info.dli_fname, nullptr);
  std::string path = real != nullptr ? real : info.dli_fname;
  free(real);
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

Status FindMaypolerun(std::string* path) {
  if (const char* bin = Variable("MAYPOLE_BIN")) {
    *path = std::string(bin) + "/" + kProgram;
    if (IsProgram(*path)) return Status();
    return Status(Code::kNotFound, *path +
                                       " (MAYPOLE_BIN) is not an executable "
                                       "file: set MAYPOLE_BIN to the directory "
                                       "of maypolerun, or unset it");
  }
  const std::string own = OwnPlace();
  std::vector<std::string> candidates = {own + "/../bin", own,
                                         own + "/launcher"};
  const char* variable = Variable("PATH");
  std::string rest = variable != nullptr ? variable : "/usr/bin:/bin";
  while (true) {
    const size_t colon = rest.find(':');
    candidates.push_back(colon == 0 ? "." : rest.substr(0, colon));
    if (colon == std::string::npos) break;
    rest.erase(0, colon + 1);
  }
  for (const std::string& directory : candidates) {
    *path = directory + "/" + kProgram;
    if (IsProgram(*path)) return Status();
  }
  return Status(Code::kNotFound,
                "maypolerun, which starts the node's agent, is neither beside "
                "libmaypole (" +
                    own +
                    ") nor on PATH: put Maypole's programs on PATH, or set "
                    "MAYPOLE_BIN to their directory");
}

// The service inherits none of the rank's descriptors and signal settings.
SpawnOptions ServiceOptions(const std::string& program,
                            const std::string& directory, int log, int report,
                            int lock) {
  SpawnOptions options;
  options.program = program;
  options.arguments = {kProgram, "--node-service", directory};
  options.descriptors = {{.fd = kDevNull, .number = 0},
                         {.fd = log, .number = 1},
                         {.fd = log, .number = 2},
                         {.fd = report, .number = kServiceReportFd},
                         {.fd = lock, .number = kServiceLockFd}};
  options.process_group = ProcessGroup::kNewSession;
  options.watched = false;
  for (int s = 1; s < NSIG; ++s) options.default_signals.push_back(s);
  return options;
}

// kDeadlineExceeded: the writer still has the pipe open.
Status ReadLine(int fd, Clock::time_point deadline, std::string* out) {
  std::string line;
  char buffer[512];
  while (line.size() < kMaxBootstrapBytes) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - Clock::now());
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(
        &p, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Status(Code::kDeadlineExceeded, "no answer");
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    line.append(buffer, static_cast<size_t>(n));
  }
  *out = line.substr(0, line.find('\n'));
  return Status();
}

}  // namespace

Status BootstrapDirectory(const std::string& key, std::string* path) {
  const std::string name =
      "/maypole-" + std::to_string(geteuid()) + "-" + HashHex(key);
  if (const char* base = Variable("MAYPOLE_RUNTIME_DIR")) {
    *path = base + name;
    if (!SocketsFit(*path)) {
      return Status(Code::kInvalidArgument,
                    std::string("MAYPOLE_RUNTIME_DIR=") + base +
                        " is too long for the path of a socket: choose a "
                        "shorter one");
    }
    return Status();
  }
  const char* base = Variable("XDG_RUNTIME_DIR");
  if (base != nullptr && OwnDirectory(base) && SocketsFit(base + name)) {
    *path = base + name;
  } else {
    *path = "/tmp" + name;
  }
  return Status();
}

Status MakePrivate(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const Status s = ErrnoStatus(errno, "cannot make " + path);
    return Status(s.code(), s.message() +
                                "; set MAYPOLE_RUNTIME_DIR to a directory of "
                                "this machine that you may write to");
  }
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) {
    return errno == ENOENT ? Status() : ErrnoStatus(errno, path);
  }
  if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
      (st.st_mode & 077) == 0) {
    return Status();
  }
  return Status(Code::kPermissionDenied,
                path + " is not a private directory of this user (uid " +
                    std::to_string(geteuid()) +
                    "): remove it, or set MAYPOLE_RUNTIME_DIR to a directory "
                    "of your own");
}

Status TryLock(const std::string& directory, Fd* lock) {
  const std::string path = directory + "/" + kServiceLock;
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) {
    // The previous service has just removed the directory.
    return errno == ENOENT ? Status() : ErrnoStatus(errno, path);
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return Status();
    return ErrnoStatus(errno, "cannot lock " + path);
  }
  struct stat ours, there;
  if (fstat(fd.get(), &ours) != 0 || stat(path.c_str(), &there) != 0 ||
      ours.st_ino != there.st_ino || ours.st_dev != there.st_dev) {
    return Status();  // the lock file of a service that has ended
  }
  *lock = std::move(fd);
  return Status();
}

Status StartNodeService(const std::string& directory, Fd lock,
                        Clock::time_point deadline) {
  std::string program;
  if (Status s = FindMaypolerun(&program); !s.ok()) {
    unlink((directory + "/" + kServiceLock).c_str());
    rmdir(directory.c_str());
    return s;
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const Fd reader{ends[0]};
  Fd writer(ends[1]);
  const Fd log(open((directory + "/" + kServiceLog).c_str(),
                    O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus(errno, "cannot start " + program);
  Child child;
  if (Status s = Spawn(ServiceOptions(program, directory, log.get(),
                                      writer.get(), lock.get()),
                       &child);
      !s.ok()) {
    return s;
  }
  writer.Reset();
  // The service continues in a second child process; this child ends at once.
  std::string line;
  const Status s = ReadLine(reader.get(), deadline, &line);
  if (!s.ok()) kill(child.pid, SIGKILL);
  // A SIGCHLD handler of the program may have waited for it already.
  while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!s.ok()) {
    return Status(s.code(), "the node service in " + directory + " (" +
                                program +
                                " --node-service) is not ready within "
                                "MAYPOLE_START_TIMEOUT; see " +
                                directory + "/" + kServiceLog);
  }
  if (line == kServiceReady) return Status();
  return Status(Code::kUnavailable,
                line.empty() ? program +
                                   " --node-service ended before it was ready: "
                                   "it may be of another version"
                             : line);
}

}  // namespace maypole
