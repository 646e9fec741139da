#include "client/launcher/command/python.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "client/launcher/process/process.h"
#include "common/system/fd.h"
#include "common/system/spawn.h"

namespace maypole::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxOutput = 4096;

// Waits until the child ends, which is killed at the deadline.
int StatusOf(pid_t child, Clock::time_point deadline) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended != 0) return status;
  kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string OutputOf(SpawnOptions options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  options.descriptors = {{.fd = kDevNull, .number = 0},
                         {.fd = write_end.get(), .number = 1},
                         {.fd = kDevNull, .number = 2}};
  Child child;
  if (!Spawn(options, &child).ok()) return {};
  write_end.Reset();
  std::string out;
  Clock::time_point deadline = Clock::now() + kPythonTimeout;
  for (bool ends_well = false; !ends_well;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    pollfd p{read_end.get(), POLLIN, 0};
    char buffer[kMaxOutput];
    const bool ready =
        left.count() > 0 && poll(&p, 1, static_cast<int>(left.count())) > 0;
    const ssize_t n = ready ? read(read_end.get(), buffer, sizeof(buffer)) : -1;
    if (n < 0 || out.size() + static_cast<size_t>(n) > kMaxOutput) {
      out.clear();
      deadline = Clock::now();
      break;
    }
    out.append(buffer, static_cast<size_t>(n));
    ends_well = n == 0;
  }
  return StatusOf(child.pid, deadline) == 0 ? out : std::string();
}

}  // namespace

std::string OutputOfPython(const std::string& code) {
  std::string python;
  if (!FindProgram("python3", &python).ok()) return {};
  return OutputOf({.program = python, .arguments = {"python3", "-c", code}});
}

}  // namespace maypole::launcher
