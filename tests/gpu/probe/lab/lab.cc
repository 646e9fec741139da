#include "tests/gpu/probe/lab/lab.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/wire/unix_socket.h"
#include "tests/gpu/probe/lab/actor.h"
#include "tests/gpu/probe/lab/command.h"

namespace maypole::probe {
namespace {

constexpr size_t kMaxLine = 64 << 10;
// A line that nobody reads is an error, not a wait.
constexpr timeval kSendTimeout = {5, 0};
// The kernel may take long to end a process that uses a GPU; but not for ever.
constexpr Duration kReapTimeout = Seconds(30);

absl::Status Errno(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

// At least 0, rounded up, and never as long as poll's "for ever".
int Milliseconds(Duration d) {
  const int64_t ms = (d.count() + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000'000));
}

}  // namespace

// --- Channel -----------------------------------------------------------------

absl::Status Channel::Send(std::string_view text, std::span<const int> fds) {
  if (text.empty() || text.size() > kMaxLine) {
    return absl::InvalidArgumentError(
        absl::StrCat("a line of ", text.size(), " bytes cannot be sent"));
  }
  return ToAbsl(SendMessage(socket_.get(), text.data(), text.size(), fds));
}

absl::StatusOr<Channel::Line> Channel::Receive(Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  Received received;
  for (;;) {
    const Status status =
        ReceiveMessage(socket_.get(), kMaxLine,
                       Milliseconds(deadline - Clock::now()), &received);
    if (status.code() == Code::kCancelled) continue;  // a signal
    if (!status.ok()) return ToAbsl(status);
    break;
  }
  if (received.data.empty()) {
    return absl::UnavailableError("the other process is gone");
  }
  return Line{std::string(received.data.begin(), received.data.end()),
              std::move(received.fds)};
}

absl::StatusOr<Channel::Line> Channel::Expect(std::string_view word,
                                              Duration timeout) {
  absl::StatusOr<Line> line = Receive(timeout);
  if (!line.ok()) {
    return absl::Status(line.status().code(),
                        absl::StrCat("waiting for '", std::string(word),
                                     "': ", line.status().message()));
  }
  const std::string_view text = line->text;
  const std::string_view first = text.substr(0, text.find(' '));
  if (first == word) return line;
  if (first == kErrorWord) return ParseErrorLine(line->text);
  return absl::InternalError(absl::StrCat("expected '", std::string(word),
                                          "', was told '", line->text, "'"));
}

// --- Actor -------------------------------------------------------------------

Actor::Actor(Actor&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      channel_(std::move(other.channel_)) {}

Actor& Actor::operator=(Actor&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    channel_ = std::move(other.channel_);
  }
  return *this;
}

void Actor::Kill() {
  const pid_t pid = std::exchange(pid_, -1);
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  if (!WaitForExit(pid, kReapTimeout).has_value()) {
    std::fprintf(stderr, "gpu probe: process %d does not die\n", pid);
  }
}

absl::Status Actor::End(Duration timeout) {
  channel_ = Channel(Fd());
  if (pid_ <= 0) return absl::OkStatus();
  const std::optional<int> status = WaitForExit(pid_, timeout);
  if (!status.has_value()) {
    Kill();
    return absl::DeadlineExceededError(
        "the process did not end when it was asked to, and was killed");
  }
  pid_ = -1;
  if (*status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the process ", ExitText(*status)));
}

// --- Lab ---------------------------------------------------------------------

absl::StatusOr<Actor> Lab::Start(
    const std::string& role, std::vector<std::string> arguments,
    const std::map<std::string, std::string>& environment) {
  if (Roles().count(role) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("no role '", role, "'"));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Errno("socketpair");
  }
  Fd ours(ends[0]), theirs(ends[1]);
  for (const int fd : ends) {
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout,
               sizeof(kSendTimeout));
  }
  std::map<std::string, std::string> changes = environment_;
  for (const auto& [name, value] : environment) changes[name] = value;
  std::vector<std::string> argv =
      ActorCommandLine(role, theirs.get(), options_, arguments);
  std::vector<std::string> envp = Environment(changes);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> envp_pointers = Pointers(envp);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return Errno("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // stdout is the table's
    fcntl(theirs.get(), F_SETFD, 0);
    execve("/proc/self/exe", argv_pointers.data(), envp_pointers.data());
    _exit(1);
  }
  return Actor(child, Channel(std::move(ours)));
}

// --- Small things ------------------------------------------------------------

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  Fd fd(memfd_create("maypole-probe", MFD_CLOEXEC));
  if (!fd.valid()) return Errno("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Errno("ftruncate");
  }
  return Map(std::move(fd), bytes);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(Fd fd, size_t bytes) {
  // Present from the beginning: a page fault is no part of a measurement.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return Errno("mmap");
  SharedMemory out;
  out.fd_ = std::move(fd);
  out.mapping_ = Mapping(data, bytes);
  return out;
}

absl::Status WaitDone(gpu::Gpu& gpu, gpu::Stream stream, Duration timeout) {
  const auto start = Clock::now();
  for (;;) {
    const absl::StatusOr<bool> done = gpu.Done(stream);
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    const Duration waited = Clock::now() - start;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("the stream was not done after ",
                       std::chrono::duration<double>(timeout).count(), " s"));
    }
    // At first at once, as short work is timed by this; then with patience.
    if (waited < Seconds(0.05)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

double Quantile(std::vector<double>& values, double p) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = p * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] +
         (values[high] - values[low]) * (at - static_cast<double>(low));
}

}  // namespace maypole::probe
