#include "common/system/process_end.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/system/thread.h"

namespace maypole {
namespace {

// Fields of /proc/PID/stat behind the name, from 0 on.
constexpr size_t kState = 0;
constexpr size_t kThreads = 17;
constexpr size_t kStartTime = 19;

// When the process has started, in ticks since the machine's; nullopt if it has
// ended. 0 if we may learn only that it exists (hidepid).
std::optional<uint64_t> StartTime(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const size_t name_end = text.rfind(')');  // the name may contain others
  if (name_end == std::string::npos) {
    if (kill(pid, 0) != 0 && errno == ESRCH) return std::nullopt;
    return 0;
  }
  std::istringstream words(text.substr(name_end + 1));
  std::vector<std::string> fields;
  for (std::string field; words >> field;) fields.push_back(field);
  if (fields.size() <= kStartTime) return 0;
  // The first thread may end before the others; then the process continues.
  const bool zombie = fields[kState] == "Z" || fields[kState] == "X";
  if (zombie && std::stoul(fields[kThreads]) <= 1) return std::nullopt;
  return std::stoull(fields[kStartTime]);
}

// Runs `wait` in a thread. *end is readable when it has returned. `wait` gets
// the other end of the pipe.
template <typename Wait>
Status InThread(Wait wait, Fd* end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  Fd reader(ends[0]);
  const auto writer = std::make_shared<Fd>(ends[1]);  // closed with the thread
  std::thread thread;
  Status s = StartThread([wait, writer] { wait(writer->get()); }, &thread);
  if (!s.ok()) return s;
  thread.detach();
  *end = std::move(reader);
  return Status();
}

}  // namespace

bool IsRefusal(int error) {
  return error == ENOSYS || error == EINVAL || error == EPERM;
}

Fd OpenPidFd(pid_t pid) {
  if (pid <= 0) {
    errno = ESRCH;
    return Fd();
  }
  // By number: glibc 2.36 declares pidfd_open() without extern "C".
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

Status WatchChild(pid_t child, Fd* end) {
  *end = OpenPidFd(child);
  if (end->valid()) return Status();
  if (!IsRefusal(errno)) return ErrnoStatus(errno, "cannot watch a process");
  return InThread(
      [child](int) {
        siginfo_t info;
        while (waitid(P_PID, static_cast<id_t>(child), &info,
                      WEXITED | WNOWAIT) != 0 &&
               errno == EINTR) {
        }
      },
      end);
}

Fd WatchProcess(pid_t pid) {
  Fd end = OpenPidFd(pid);
  if (end.valid() || !IsRefusal(errno)) return end;
  const std::optional<uint64_t> start = StartTime(pid);
  if (!start) return Fd();
  (void)InThread(
      [pid, start](int writer) {
        // The writing end has an event when the reading end is closed.
        pollfd reader{writer, 0, 0};
        while (StartTime(pid) == start &&
               poll(&reader, 1, static_cast<int>(kLookInterval.count())) == 0) {
        }
      },
      &end);
  return end;
}

}  // namespace maypole
