#include "worker/session/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/log_value.h"
#include "worker/core/limits.h"
#include "worker/session/control.h"
#include "worker/session/launch.h"

namespace maypole::worker {
namespace {

// Tags of epoll: what the descriptor is, in the low bits.
enum Tag : uint64_t {
  kListener = 0,
  kStopSignal = 1,
  kHalfOpen = 2,
  kControl = 3,
  kPidFd = 4,
};
constexpr uint64_t TagOf(Tag what, uint64_t id) { return id << 3 | what; }

constexpr int kTickMs = 500;
// Out of descriptors or memory: nobody is accepted for so long.
constexpr int64_t kPauseMs = 50;
// No accept has failed for so long: the trouble is over.
constexpr int64_t kCalmMs = 1000;
constexpr auto kEndTime = std::chrono::milliseconds(2000);

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Fd OpenPidFd(pid_t pid) {
  if (pid <= 0) return Fd();
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

void SetNonBlocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Compares in a time that depends on the lengths alone.
bool SameToken(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

// Names go into log lines and labels.
absl::Status CheckName(const std::string& what, const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError(what + " is empty");
  for (const char c : name) {
    if (c > ' ' && c < 127 && c != '"' && c != '\\') continue;
    return absl::InvalidArgumentError(
        what +
        " may have printable ASCII characters without spaces and quotes");
  }
  return absl::OkStatus();
}

std::string HowEnded(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("killed by signal ", WTERMSIG(status), " (",
                        strsignal(WTERMSIG(status)), ")");
  }
  return absl::StrCat("exit status ", WEXITSTATUS(status));
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options,
                       std::shared_ptr<WorkerMetrics> metrics)
    : options_(std::move(options)),
      metrics_(std::move(metrics)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

Supervisor::~Supervisor() {
  if (listener_.valid()) unlink(options_.socket.c_str());
}

absl::Status Supervisor::Listen() {
  const mode_t mode = geteuid() == 0 ? 0666 : 0600;
  const Status s = ListenUnix(options_.socket, mode, &listener_);
  if (!s.ok()) return ToAbsl(s);
  SetNonBlocking(listener_.get());
  Watch(listener_.get(), TagOf(kListener, 0));
  return absl::OkStatus();
}

void Supervisor::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

absl::Status Supervisor::Run(Fd stop_signals) {
  Watch(stop_signals.get(), TagOf(kStopSignal, 0));
  while (!stop_) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_.get(), events, 64, WaitMs());
    if (n < 0 && errno != EINTR) {
      return ToAbsl(ErrnoStatus(errno, "epoll_wait"));
    }
    for (int i = 0; i < n; ++i) HandleEvent(events[i].data.u64);
    DropLateHalfOpen();
    if (resume_ms_ != 0 && NowMs() >= resume_ms_) ResumeAccepting();
  }
  EndExecutors();
  return absl::OkStatus();
}

int Supervisor::WaitMs() const {
  if (resume_ms_ != 0) {
    return static_cast<int>(
        std::clamp<int64_t>(resume_ms_ - NowMs(), 0, kPauseMs));
  }
  return half_open_.empty() ? -1 : kTickMs;
}

void Supervisor::HandleEvent(uint64_t tag) {
  const uint64_t id = tag >> 3;
  switch (static_cast<Tag>(tag & 7)) {
    case kListener:
      return Accept();
    case kStopSignal:
      stop_ = true;
      return;
    case kHalfOpen:
      return OnHello(id);
    case kControl:
      return OnExecutorMessage(id);
    case kPidFd:
      return OnExecutorEnded(id);
  }
}

// --- Clients -----------------------------------------------------------------

void Supervisor::Accept() {
  HalfOpen client;
  const Status s = AcceptUnix(listener_.get(), &client.socket);
  if (!s.ok()) {
    if (!cannot_accept_) {
      spdlog::error("event=accept_failed reason={}", LogValue(s.message()));
    }
    cannot_accept_ = true;
    failed_ms_ = NowMs();
    DropOldestHalfOpen();  // makes room, if descriptors are what is missing
    return PauseAccepting();
  }
  if (!client.socket.valid()) return;
  if (cannot_accept_ && NowMs() - failed_ms_ >= kCalmMs) {
    cannot_accept_ = false;
    spdlog::info("event=accepts_again");
  }
  SetNonBlocking(client.socket.get());
  if (const Status p = PeerOf(client.socket.get(), &client.peer); !p.ok()) {
    return;
  }
  if (half_open_.size() >= kMaxHalfOpen) DropOldestHalfOpen();
  client.since_ms = NowMs();
  const uint64_t id = next_id_++;
  Watch(client.socket.get(), TagOf(kHalfOpen, id));
  half_open_[id] = std::move(client);
}

// The listener stays readable: who polled it would do nothing else.
void Supervisor::PauseAccepting() {
  resume_ms_ = NowMs() + kPauseMs;
  epoll_event none{};
  none.data.u64 = TagOf(kListener, 0);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &none);
}

void Supervisor::ResumeAccepting() {
  resume_ms_ = 0;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = TagOf(kListener, 0);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

// Before a client is dropped. Its Hello may be there already: it is we who are
// late (stopped, no time on a busy node), or its event is still before us.
bool Supervisor::IsSilent(uint64_t id) {
  OnHello(id);
  return half_open_.contains(id);
}

void Supervisor::DropOldestHalfOpen() {
  if (half_open_.empty()) return;
  const uint64_t id = half_open_.begin()->first;
  if (IsSilent(id)) half_open_.erase(id);
}

void Supervisor::DropLateHalfOpen() {
  const int64_t now = NowMs();
  while (!half_open_.empty() &&
         now - half_open_.begin()->second.since_ms >= kHelloTimeoutMs) {
    const auto [id, peer] =
        std::pair(half_open_.begin()->first, half_open_.begin()->second.peer);
    if (!IsSilent(id)) continue;
    spdlog::warn("event=no_hello uid={} pid={}", peer.uid, peer.pid);
    half_open_.erase(id);
  }
}

void Supervisor::OnHello(uint64_t id) {
  const auto it = half_open_.find(id);
  if (it == half_open_.end()) return;
  Received message;
  Status s = ReceiveMessage(it->second.socket.get(), session::kMaxMessageBytes,
                            0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  CloseUnasked(std::move(message.fds));
  HalfOpen client = std::move(it->second);
  half_open_.erase(it);
  if (s.ok() && message.data.empty()) return;  // it has gone
  session::Hello hello;
  if (s.ok()) {
    s = session::CheckHeader(message.data.data(), message.data.size(),
                             "client");
  }
  if (s.ok()) {
    s = session::Parse(message.data.data(), message.data.size(), &hello);
  }
  if (!s.ok()) return Refuse(client, s.code(), s.message());
  const absl::Status admitted = Admit(hello, client);
  if (!admitted.ok()) {
    Refuse(client, static_cast<Code>(admitted.raw_code()),
           std::string(admitted.message()));
  }
}

void Supervisor::Refuse(const HalfOpen& client, Code code,
                        const std::string& text) {
  spdlog::warn("event=client_refused uid={} pid={} reason={}", client.peer.uid,
               client.peer.pid, LogValue(text));
  metrics_->CountRefusal();
  auto refused = session::Make<session::Refused>();
  refused.code = static_cast<uint32_t>(code);
  session::SetText(refused.text, text);
  (void)SendMessage(client.socket.get(), &refused, sizeof(refused));
}

absl::Status Supervisor::Admit(const session::Hello& hello, HalfOpen& client) {
  if (geteuid() != 0 && client.peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "this agent serves uid ", geteuid(), " only, the process has uid ",
        client.peer.uid, "; start an agent of your own or one as root"));
  }
  if (absl::Status s = CheckName("the job id (MAYPOLE_JOB)", hello.job);
      !s.ok()) {
    return s;
  }
  absl::StatusOr<Executor*> executor = ExecutorFor(hello, client.peer);
  if (!executor.ok()) return executor.status();
  return HandOver(hello, client, *executor);
}

absl::Status Supervisor::HandOver(const session::Hello& hello, HalfOpen& client,
                                  Executor* executor) {
  control::HandOver message;
  message.pid = client.peer.pid;
  message.hello = hello;
  const Fd pidfd = OpenPidFd(client.peer.pid);
  std::vector<int> fds = {client.socket.get()};
  if (pidfd.valid()) fds.push_back(pidfd.get());
  const Status s =
      SendMessage(executor->control.get(), &message, sizeof(message), fds);
  if (!s.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the executor of job '", executor->job, "' (pid ",
                     executor->pid, ") does not take clients: ", s.message()));
  }
  ++executor->handed_over;
  return absl::OkStatus();
}

// --- Executors ---------------------------------------------------------------

absl::StatusOr<Supervisor::Executor*> Supervisor::ExecutorFor(
    const session::Hello& hello, const PeerCredentials& peer) {
  const auto it = by_job_.find({peer.uid, hello.job});
  if (it == by_job_.end()) return StartExecutor(hello, peer);
  Executor* executor = &executors_.at(it->second);
  if (!SameToken(executor->token, hello.token)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "job '", hello.job,
        "' is there with another token; use another MAYPOLE_JOB, or the same "
        "MAYPOLE_TOKEN on all its ranks"));
  }
  return executor;
}

absl::StatusOr<Supervisor::Executor*> Supervisor::StartExecutor(
    const session::Hello& hello, const PeerCredentials& peer) {
  if (executors_.size() >= kMaxExecutors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this agent serves ", kMaxExecutors,
                     " jobs already, which is its limit"));
  }
  // A user's own agent is all his; one for all users keeps room for others.
  const size_t of_user = static_cast<size_t>(
      std::count_if(executors_.begin(), executors_.end(),
                    [&](const auto& e) { return e.second.uid == peer.uid; }));
  if (geteuid() == 0 && peer.uid != 0 && of_user >= kMaxExecutorsOfUser) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this agent serves ", kMaxExecutorsOfUser, " jobs of uid ", peer.uid,
        " already, its limit for one user; end some (a job that has no "
        "processes any more counts for ",
        kIdleMs / 1000, " s)"));
  }
  absl::StatusOr<SharedStats> stats = SharedStats::Create();
  if (!stats.ok()) return stats.status();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return ToAbsl(ErrnoStatus(errno, "cannot start an executor"));
  }
  Executor executor;
  executor.control = Fd(pair[0]);
  const Fd theirs(pair[1]);
  SetNonBlocking(executor.control.get());
  executor.job = hello.job;
  executor.token = hello.token;
  executor.uid = peer.uid;
  control::Setup setup;
  session::SetText(setup.job, executor.job);
  session::SetText(setup.token, executor.token);
  session::SetText(setup.secret, options_.secret);
  const Status s = SendMessage(executor.control.get(), &setup, sizeof(setup));
  if (!s.ok()) return ToAbsl(s);
  absl::StatusOr<pid_t> pid =
      LaunchExecutor({options_.executor_arguments, theirs.get(), stats->fd(),
                      options_.tls.get(), peer.uid, peer.gid});
  if (!pid.ok()) return pid.status();
  executor.pid = *pid;
  executor.pidfd = OpenPidFd(*pid);
  spdlog::info("event=executor_started job={} uid={} pid={}", executor.job,
               executor.uid, executor.pid);
  const uint64_t id = next_id_++;
  Watch(executor.control.get(), TagOf(kControl, id));
  Watch(executor.pidfd.get(), TagOf(kPidFd, id));
  metrics_->Add(id, {executor.job, executor.uid, executor.pid},
                std::make_shared<SharedStats>(*std::move(stats)));
  by_job_[{executor.uid, executor.job}] = id;
  return &(executors_[id] = std::move(executor));
}

void Supervisor::OnExecutorMessage(uint64_t id) {
  const auto it = executors_.find(id);
  if (it == executors_.end()) return;
  Executor& e = it->second;
  Received message;
  const Status s =
      ReceiveMessage(e.control.get(), control::kMaxMessageBytes, 0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  control::Idle idle;
  bool ends = !s.ok() || message.data.empty();
  if (!ends && message.data.size() == sizeof(idle)) {
    std::memcpy(&idle, message.data.data(), sizeof(idle));
    // Else a client is on its way to it.
    ends = idle.received == e.handed_over;
  }
  if (!ends) return;
  e.control.Reset();
  by_job_.erase({e.uid, e.job});
}

void Supervisor::OnExecutorEnded(uint64_t id) {
  const auto it = executors_.find(id);
  if (it == executors_.end()) return;
  Executor& e = it->second;
  int status = 0;
  if (waitpid(e.pid, &status, WNOHANG) != e.pid) return;
  const bool crashed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  spdlog::log(crashed ? spdlog::level::err : spdlog::level::info,
              "event=executor_ended job={} uid={} pid={} how={}", e.job, e.uid,
              e.pid, LogValue(HowEnded(status)));
  metrics_->Remove(id, crashed);
  if (e.control.valid()) by_job_.erase({e.uid, e.job});
  executors_.erase(it);
}

void Supervisor::EndExecutors() {
  // In this order: once nobody listens, an agent that starts now may have put
  // its own socket there.
  unlink(options_.socket.c_str());
  listener_.Reset();
  half_open_.clear();
  for (const auto& [id, e] : executors_) kill(e.pid, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + kEndTime;
  while (!executors_.empty()) {
    epoll_event events[64];
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    const int n =
        epoll_wait(epoll_.get(), events, 64, static_cast<int>(left.count()));
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
      if ((tag & 7) == kPidFd || (tag & 7) == kControl) HandleEvent(tag);
    }
    if (n <= 0 && errno != EINTR) break;
  }
  for (const auto& [id, e] : executors_) {
    spdlog::error("event=executor_killed job={} pid={}", e.job, e.pid);
    kill(e.pid, SIGKILL);
    waitpid(e.pid, nullptr, 0);
  }
}

}  // namespace maypole::worker
