#include "worker/agent/supervisor.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/absl_status.h"
#include "common/log_value.h"
#include "common/name.h"
#include "common/program/job_ticket.h"
#include "common/program/secret.h"
#include "common/system/process_end.h"
#include "common/system/spawn.h"
#include "common/wire/job_variables.h"
#include "worker/agent/control.h"
#include "worker/agent/executor_environment.h"
#include "worker/agent/launch.h"
#include "worker/core/limits.h"
#include "worker/executor/board/process_state.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kHelloTimeout{kHelloTimeoutMs};
// Accepting pauses this long after a failure (no descriptors or memory).
constexpr milliseconds kPause{50};
// After this time without a failed accept, accepting counts as recovered.
constexpr milliseconds kCalm{1000};
// An executor must receive a client within this time.
constexpr milliseconds kTakeTime{5000};
// Executors must end within this time after SIGTERM.
constexpr milliseconds kEndTime{2000};

void SetNonBlocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
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
      hello_timer_(&loop_, [this] { DropLateHalfOpen(); }),
      resume_timer_(&loop_, [this] { listener_.WantRead(true); }),
      stuck_timer_(&loop_, [this] { ReportStuckExecutors(); }) {}

Supervisor::~Supervisor() {
  if (listener_.valid()) unlink(options_.socket.c_str());
}

absl::Status Supervisor::Listen() {
  const mode_t mode = geteuid() == 0 ? 0666 : 0600;
  Fd listener;
  if (const Status s = ListenUnix(options_.socket, mode, &listener); !s.ok()) {
    return ToAbsl(s);
  }
  SetNonBlocking(listener.get());
  return ToAbsl(loop_.Watch(std::move(listener),
                            {.readable = [this] { Accept(); }}, &listener_));
}

absl::Status Supervisor::Run(Fd stop_signals) {
  Status s =
      loop_.Watch(std::move(stop_signals),
                  {.readable = [this] { stop_ = true; }}, &stop_signals_);
  while (s.ok() && !stop_) s = loop_.RunOnce();
  EndExecutors();
  return ToAbsl(s);
}

// --- Clients -----------------------------------------------------------------

void Supervisor::Accept() {
  Fd socket;
  if (const Status s = AcceptUnix(listener_.fd(), &socket); !s.ok()) {
    return OnAcceptFailed(s);
  }
  if (!socket.valid()) return;
  if (const Status s = TakeIn(std::move(socket)); !s.ok()) {
    return OnAcceptFailed(s);
  }
  if (cannot_accept_ && steady_clock::now() - failed_ >= kCalm) {
    cannot_accept_ = false;
    spdlog::info("event=accepts_again");
  }
}

// Pauses: the listener stays readable, so retrying at once would be a busy
// loop.
void Supervisor::OnAcceptFailed(const Status& why) {
  if (!cannot_accept_) {
    spdlog::error("event=accept_failed reason={}", LogValue(why.message()));
  }
  cannot_accept_ = true;
  failed_ = steady_clock::now();
  DropOldestHalfOpen();  // frees a descriptor, in case none is left
  listener_.WantRead(false);
  resume_timer_.Set(failed_ + kPause);
}

Status Supervisor::TakeIn(Fd socket) {
  HalfOpen client;
  SetNonBlocking(socket.get());
  if (!PeerOf(socket.get(), &client.peer).ok()) return Status();
  if (half_open_.size() >= kMaxHalfOpen) DropOldestHalfOpen();
  const uint64_t id = next_id_++;
  const Status s =
      loop_.Watch(std::move(socket), {.readable = [this, id] { OnHello(id); }},
                  &client.socket);
  if (!s.ok()) return s;
  client.since = steady_clock::now();
  if (!hello_timer_.pending()) hello_timer_.Set(client.since + kHelloTimeout);
  half_open_[id] = std::move(client);
  return Status();
}

// Called before a client is dropped. Its Hello may have arrived already: this
// process may have been stopped or short of CPU time, or the loop may not have
// reached the event yet. Returns true if there is no Hello.
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
  const Time now = steady_clock::now();
  while (!half_open_.empty()) {
    const uint64_t id = half_open_.begin()->first;
    const PeerCredentials peer = half_open_.begin()->second.peer;
    const Time deadline = half_open_.begin()->second.since + kHelloTimeout;
    if (now < deadline) return hello_timer_.Set(deadline);
    if (!IsSilent(id)) continue;
    spdlog::warn("event=no_hello uid={} pid={}", peer.uid, peer.pid);
    half_open_.erase(id);
  }
}

void Supervisor::OnHello(uint64_t id) {
  const auto it = half_open_.find(id);
  if (it == half_open_.end()) return;
  Received message;
  Status s = ReceiveMessage(it->second.socket.fd(), session::kMaxHelloBytes, 0,
                            &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  CloseUnasked(std::move(message.fds));
  const Client client{it->second.socket.Release(), it->second.peer};
  half_open_.erase(it);
  if (s.ok() && message.data.empty()) return;  // the client has disconnected
  session::Hello hello;
  Variables variables;
  if (s.ok()) {
    s = session::ParseHello(message.data.data(), message.data.size(),
                            options_.speaker, &hello, &variables);
  }
  if (!s.ok()) return Refuse(client, message.data, s.code(), s.message());
  const absl::Status admitted = Admit(hello, variables, client);
  if (!admitted.ok()) {
    Refuse(client, message.data, static_cast<Code>(admitted.raw_code()),
           std::string(admitted.message()));
  }
}

void Supervisor::Refuse(const Client& client, const std::vector<char>& hello,
                        Code code, const std::string& text) {
  spdlog::warn("event=client_refused uid={} pid={} reason={}", client.peer.uid,
               client.peer.pid, LogValue(text));
  metrics_->CountRefusal();
  auto refused = session::Make<session::Refused>();
  // In the client's version; it could not read the reason in another.
  if (session::Header h; hello.size() >= sizeof(h)) {
    std::memcpy(&h, hello.data(), sizeof(h));
    if (h.magic == session::kMagic) refused.header.version = h.version;
  }
  refused.code = static_cast<uint32_t>(code);
  session::SetText(refused.text, text);
  (void)SendMessage(client.socket.get(), &refused, sizeof(refused));
}

absl::Status Supervisor::Admit(const session::Hello& hello,
                               const Variables& variables,
                               const Client& client) {
  if (geteuid() != 0 && client.peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "this agent serves uid ", geteuid(), " only, but the process has uid ",
        client.peer.uid, "; start your own agent, or one as root"));
  }
  if (const Status s =
          CheckName("the job id (MAYPOLE_JOB)", hello.job, kMaxJobBytes);
      !s.ok()) {
    return ToAbsl(s);
  }
  absl::StatusOr<Executor*> executor =
      ExecutorFor(hello, variables, client.peer);
  if (!executor.ok()) return executor.status();
  return HandOver(hello, client, *executor);
}

absl::Status Supervisor::HandOver(const session::Hello& hello,
                                  const Client& client, Executor* executor) {
  control::HandOver message;
  message.pid = client.peer.pid;
  message.hello = hello;
  const Fd pidfd = OpenPidFd(client.peer.pid);
  std::vector<int> fds = {client.socket.get()};
  if (pidfd.valid()) fds.push_back(pidfd.get());
  const Status s =
      SendMessage(executor->control.fd(), &message, sizeof(message), fds);
  if (!s.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the executor of job '", executor->job, "' (pid ",
                     executor->pid, ") accepts no clients: ", s.message()));
  }
  ++executor->handed_over;
  executor->last_handed_over = steady_clock::now();
  if (!stuck_timer_.pending()) {
    stuck_timer_.Set(executor->last_handed_over + kTakeTime);
  }
  if (options_.on_rank) options_.on_rank(hello);
  return absl::OkStatus();
}

// --- Executors ---------------------------------------------------------------

absl::StatusOr<Supervisor::Executor*> Supervisor::ExecutorFor(
    const session::Hello& hello, const Variables& variables,
    const PeerCredentials& peer) {
  const auto it = by_job_.find({peer.uid, hello.job});
  if (it == by_job_.end()) {
    return StartExecutor(hello, variables, peer);
  }
  Executor* executor = &executors_.at(it->second);
  if (!EqualSecrets(executor->token, hello.token)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "job '", hello.job,
        "' is there with another token; use another MAYPOLE_JOB, or the same "
        "MAYPOLE_TOKEN on all its ranks"));
  }
  return executor;
}

absl::Status Supervisor::CheckLimits(const PeerCredentials& peer) const {
  if (executors_.size() >= kMaxExecutors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this agent serves ", kMaxExecutors,
                     " jobs already, which is its limit"));
  }
  // An agent for all users keeps room for others; a user's own agent need not.
  const size_t of_user = static_cast<size_t>(
      std::count_if(executors_.begin(), executors_.end(),
                    [&](const auto& e) { return e.second.uid == peer.uid; }));
  if (geteuid() == 0 && peer.uid != 0 && of_user >= kMaxExecutorsOfUser) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this agent serves ", kMaxExecutorsOfUser, " jobs of uid ", peer.uid,
        " already, its limit for one user; end some of them (a job counts "
        "until ",
        kIdleMs / 1000,
        " s after its last process has ended, or for --state_timeout if its "
        "ranks have left a state)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Supervisor::Executor*> Supervisor::StartExecutor(
    const session::Hello& hello, const Variables& variables,
    const PeerCredentials& peer) {
  if (absl::Status s = CheckLimits(peer); !s.ok()) return s;
  absl::StatusOr<SharedStats> stats = SharedStats::Create();
  if (!stats.ok()) return stats.status();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return ToAbsl(ErrnoStatus(errno, "cannot start an executor"));
  }
  Fd ours(pair[0]);
  const Fd theirs(pair[1]);
  SetNonBlocking(ours.get());
  control::Setup setup;
  session::SetText(setup.job, hello.job);
  session::SetText(setup.token, hello.token);
  session::SetText(setup.credential,
                   options_.share_secret
                       ? options_.secret
                       : JobTicket(options_.secret, hello.job));
  setup.change_user = geteuid() == 0 && peer.uid != 0;
  setup.uid = peer.uid;
  setup.gid = peer.gid;
  Status s = SendMessage(ours.get(), &setup, sizeof(setup));
  if (!s.ok()) return ToAbsl(s);
  const ExecutorEnvironment environment =
      MakeExecutorEnvironment(environ, variables, setup.change_user);
  absl::StatusOr<Child> child =
      LaunchExecutor({options_.executor_arguments, environment.variables,
                      theirs.get(), stats->fd(), options_.tls.get()});
  if (!child.ok()) return child.status();
  const uint64_t id = next_id_++;
  Executor& executor = executors_[id];
  executor.job = hello.job;
  executor.token = hello.token;
  executor.uid = peer.uid;
  executor.pid = child->pid;
  s = WatchExecutor(id, std::move(ours), std::move(child->end));
  if (!s.ok()) {
    kill(executor.pid, SIGKILL);
    waitpid(executor.pid, nullptr, 0);
    executors_.erase(id);
    return ToAbsl(s);
  }
  if (!environment.left_out.empty()) {
    spdlog::info("event=variables_left_out job={} uid={} names={}",
                 executor.job, executor.uid,
                 LogValue(absl::StrJoin(environment.left_out, ",")));
  }
  spdlog::info("event=executor_started job={} uid={} pid={}", executor.job,
               executor.uid, executor.pid);
  metrics_->Add(id, {executor.job, executor.uid, executor.pid},
                std::make_shared<SharedStats>(*std::move(stats)));
  by_job_[{executor.uid, executor.job}] = id;
  return &executor;
}

Status Supervisor::WatchExecutor(uint64_t id, Fd control, Fd end) {
  Executor& executor = executors_.at(id);
  Status s = loop_.Watch(std::move(control),
                         {.readable = [this, id] { OnExecutorMessage(id); }},
                         &executor.control);
  if (!s.ok()) return s;
  return loop_.Watch(std::move(end),
                     {.readable = [this, id] { OnExecutorEnded(id); }},
                     &executor.end);
}

void Supervisor::OnExecutorMessage(uint64_t id) {
  const auto it = executors_.find(id);
  if (it == executors_.end()) return;
  Executor& e = it->second;
  Received message;
  const Status s =
      ReceiveMessage(e.control.fd(), control::kMaxMessageBytes, 0, &message);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return;
  }
  control::Idle idle;
  bool ends = !s.ok() || message.data.empty();
  if (!ends && message.data.size() == sizeof(idle)) {
    std::memcpy(&idle, message.data.data(), sizeof(idle));
    // If the numbers differ, a client is still on its way to the executor.
    ends = idle.received == e.handed_over;
  }
  if (!ends) return;
  e.control.Reset();
  by_job_.erase({e.uid, e.job});
}

void Supervisor::ReportStuckExecutors() {
  const Time now = steady_clock::now();
  std::optional<Time> next;
  for (auto& [id, e] : executors_) {
    int unread = 0;
    const bool stuck = e.control.valid() &&
                       ioctl(e.control.fd(), SIOCOUTQ, &unread) == 0 &&
                       unread > 0;
    if (stuck && now < e.last_handed_over + kTakeTime) {
      next = std::min(next.value_or(Time::max()),
                      e.last_handed_over + kTakeTime);
    } else if (stuck && !e.stuck) {
      spdlog::error(
          "event=executor_stuck job={} uid={} pid={} seconds={} stopped={}",
          e.job, e.uid, e.pid, kTakeTime.count() / 1000, IsStopped(e.pid));
    }
    if (!stuck || now >= e.last_handed_over + kTakeTime) e.stuck = stuck;
  }
  if (next) stuck_timer_.Set(*next);
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
  // Unlink first: once the listener is closed, a newly started agent may have
  // put its own socket at this path.
  unlink(options_.socket.c_str());
  listener_.Reset();
  stop_signals_.Reset();
  half_open_.clear();
  for (const auto& [id, e] : executors_) kill(e.pid, SIGTERM);
  const Time deadline = steady_clock::now() + kEndTime;
  while (!executors_.empty() && steady_clock::now() < deadline) {
    if (!loop_.RunOnce(deadline).ok()) break;
  }
  for (const auto& [id, e] : executors_) {
    spdlog::error("event=executor_killed job={} pid={}", e.job, e.pid);
    kill(e.pid, SIGKILL);
    waitpid(e.pid, nullptr, 0);
  }
}

}  // namespace maypole::worker
