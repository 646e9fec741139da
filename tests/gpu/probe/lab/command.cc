#include "tests/gpu/probe/lab/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace maypole::probe {
namespace {

// The child's exit status when the program could not be executed; see execve.
constexpr int kNoProgram = 127;

struct Pipe {
  Fd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = getenv("PATH");
  for (const absl::string_view directory :
       absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    const std::string candidate = absl::StrCat(directory, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// Until the end of the stream; false: not within the time.
bool ReadAll(int fd, Clock::time_point deadline, std::string* out) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    out->append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

std::vector<std::string> Environment(
    const std::map<std::string, std::string>& changes) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    if (changes.count(std::string(entry.substr(0, entry.find('=')))) == 0) {
      out.emplace_back(entry);
    }
  }
  for (const auto& [name, value] : changes) {
    out.push_back(absl::StrCat(name, "=", value));
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::optional<int> WaitForExit(pid_t child, Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    int status = 0;
    const pid_t got = waitpid(child, &status, WNOHANG);
    if (got == child) return status;
    if (got < 0 && errno != EINTR) return 0;  // reaped by somebody else
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

std::string ExitText(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status));
  }
  return absl::StrCat("ended with status ", WEXITSTATUS(wait_status));
}

absl::StatusOr<std::string> RunCommand(const Command& command,
                                       Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string program = FindProgram(command.arguments[0]);
  if (program.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no ", command.arguments[0], " in PATH"));
  }
  absl::StatusOr<Pipe> in = MakePipe();
  absl::StatusOr<Pipe> out = MakePipe();
  if (!in.ok()) return in.status();
  if (!out.ok()) return out.status();
  // Small enough for a pipe's buffer, so that this never waits.
  const std::string input = command.input.substr(0, 4096);
  if (write(in->write.get(), input.data(), input.size()) < 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  in->write.Reset();

  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = Environment(command.environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  const pid_t child = fork();
  if (child < 0) {
    return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in->read.get(), STDIN_FILENO);
    dup2(out->write.get(), STDOUT_FILENO);
    dup2(out->write.get(), STDERR_FILENO);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(kNoProgram);
  }
  out->write.Reset();

  std::string text;
  ReadAll(out->read.get(), deadline, &text);
  std::optional<int> status = WaitForExit(child, deadline - Clock::now());
  if (!status.has_value()) {
    kill(child, SIGKILL);
    WaitForExit(child, Seconds(5));
    return absl::DeadlineExceededError(
        absl::StrCat(command.arguments[0], " did not end in time"));
  }
  absl::StripAsciiWhitespace(&text);
  if (*status != 0) {
    return absl::UnavailableError(
        absl::StrCat(command.arguments[0], " ", ExitText(*status), ": ",
                     text.empty() ? "it printed nothing" : text));
  }
  return text;
}

}  // namespace maypole::probe
