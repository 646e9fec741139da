#include "client/session/rank_session.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "client/bootstrap/node_bootstrap.h"
#include "client/session/stall_notice.h"
#include "common/gpu/nccl/nccl.h"
#include "common/wire/job_variables.h"
#include "common/wire/unix_socket.h"

namespace maypole {
namespace {

// The session of the last Join(); used by AbandonJoinInChild().
std::atomic<RankSession*> last_joined{nullptr};

using Clock = std::chrono::steady_clock;

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

Status Connect(const RankOptions& options, Clock::time_point deadline,
               Fd* out) {
  // An agent started at the same moment may not listen yet.
  const auto patience =
      std::min(deadline, Clock::now() + std::chrono::seconds(5));
  for (;;) {
    Status s = ConnectUnix(options.agent, out, MillisecondsUntil(deadline));
    if (s.code() == Code::kDeadlineExceeded) {
      return Status(s.code(), "no agent answers at " + options.agent +
                                  " within " +
                                  std::to_string(options.start_timeout_seconds) +
                                  " s (MAYPOLE_START_TIMEOUT): " + s.message() +
                                  "; is maypole-worker stopped?");
    }
    if (s.code() == Code::kPermissionDenied) {
      return Status(s.code(),
                    s.message() +
                        "; that agent serves its own user only: start "
                        "maypolerun as the user of the ranks, or "
                        "maypole-worker as root");
    }
    if (s.ok() || s.code() != Code::kUnavailable) return s;
    if (Clock::now() >= patience) {
      return Status(Code::kUnavailable,
                    "no agent listens at " + options.agent + " (" +
                        s.message() +
                        "); start maypole-worker on this node, or the ranks "
                        "with maypolerun");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The process that listens there can read tensors and write results, so it must
// run under this user's uid, root's, or the one in MAYPOLE_AGENT_UID.
Status CheckAgent(const RankOptions& options, int socket, int* pid) {
  PeerCredentials peer;
  if (Status s = PeerOf(socket, &peer); !s.ok()) return s;
  *pid = peer.pid;
  if (peer.uid == 0 || peer.uid == geteuid() ||
      static_cast<int64_t>(peer.uid) == options.agent_uid) {
    return Status();
  }
  return Status(Code::kPermissionDenied,
                "the agent at " + options.agent + " runs under uid " +
                    std::to_string(peer.uid) +
                    ", which is neither this user's (" +
                    std::to_string(geteuid()) +
                    ") nor root: if you trust it, set MAYPOLE_AGENT_UID=" +
                    std::to_string(peer.uid));
}

// Under Slurm without PMIx, the nodes derive the secret from a file in the
// user's home directory.
Status WithHint(const RankOptions& asked, const Status& s) {
  if (s.code() != Code::kUnauthenticated || asked.found.head.empty() ||
      !asked.token.empty()) {
    return s;
  }
  return Status(s.code(), s.message() +
                              " (the secret comes from ~/.maypole/secret: if "
                              "the nodes do not share the home directory, set "
                              "MAYPOLE_TOKEN to the same random text on all "
                              "ranks)");
}

std::string WhoWaits(const RankOptions& o) {
  return o.elastic ? "this process" : "rank " + std::to_string(o.rank);
}

std::string ForWhom(const RankOptions& o) {
  return "the other " + (o.elastic ? "" : std::to_string(o.size - 1) + " ") +
         "ranks of job " + o.job;
}

session::Hello MakeHello(const RankOptions& o) {
  auto m = session::Make<session::Hello>();
  m.header.version = kProtocolVersions.oldest;
  m.newest_version = kProtocolVersions.newest;
  m.rank = o.rank;
  m.size = o.size;
  m.local_rank = o.local_rank;
  m.local_size = o.local_size;
  m.cross_rank = o.cross_rank;
  m.cross_size = o.cross_size;
  m.pid = static_cast<int32_t>(getpid());
  m.fusion_threshold = o.fusion_threshold;
  m.stall_check_ms = o.stall_check_ms;
  m.stall_shutdown_ms = o.stall_shutdown_ms;
  m.start_timeout_ms = int64_t{o.start_timeout_seconds} * 1000;
  m.elastic = o.elastic ? 1 : 0;
  m.last_epoch = o.last_epoch;
  m.min_size = o.min_size;
  m.max_size = o.max_size;
  m.checksums = static_cast<uint32_t>(o.checksums);
  session::SetText(m.job, o.job);
  session::SetText(m.token, o.token);
  char host[kMaxHostBytes + 1] = {};
  gethostname(host, sizeof(host) - 1);
  session::SetText(m.host, host);
  return m;
}

}  // namespace

Status RankSession::Join(const RankOptions& asked,
                         std::unique_ptr<RankSession>* out) {
  const auto deadline =
      Clock::now() + std::chrono::seconds(asked.start_timeout_seconds);
  RankOptions options = asked;
  if (options.agent.empty()) {
    if (Status s = BootstrapNode(deadline, &options); !s.ok()) return s;
  }
  std::unique_ptr<RankSession> session(new RankSession);
  last_joined = session.get();
  session->agent_ = options.agent;
  session->token_ = options.token;
  // An agent that was killed may be restarted, by systemd for example. Ranks
  // that have not started continue with the new one.
  bool again = true;
  Status s;
  while (std::exchange(again, false)) {
    s = session->Enter(options, deadline, &again);
  }
  if (!s.ok()) return WithHint(asked, s);
  *out = std::move(session);
  return Status();
}

Status RankSession::Enter(const RankOptions& options,
                          Clock::time_point deadline, bool* closed) {
  const int before = agent_pid_;
  Status s = Connect(options, deadline, &socket_);
  if (s.ok()) s = CheckAgent(options, socket_.get(), &agent_pid_);
  if (!s.ok()) return s;
  if (agent_pid_ == before) {
    return Status(Code::kUnavailable,
                  "the agent at " + options.agent +
                      " closed the connection before the job started; see its "
                      "log");
  }
  std::string hello;
  const auto nccl = nccl::FindLoadedNccl();
  s = session::HelloMessage(MakeHello(options), environ, nccl ? nccl->path : "",
                            &hello);
  if (!s.ok()) return s;
  if (s = SendMessage(socket_.get(), hello.data(), hello.size()); !s.ok()) {
    return Status(s.code(), "agent at " + options.agent + ": " + s.message());
  }
  // When the coordinator's own start timeout passes, its error names the
  // missing ranks: give it time to arrive.
  return AwaitWelcome(options, MillisecondsUntil(deadline) + 3000, closed);
}

RankSession::~RankSession() {
  RankSession* self = this;
  last_joined.compare_exchange_strong(self, nullptr);
}

void RankSession::AbandonJoinInChild() {
  if (RankSession* session = last_joined) session->Abandon();
}

// The agent takes the hello from the socket and passes the connection to the
// executor, which reports within the start timeout what it waits for.
std::string RankSession::Awaited(const RankOptions& options) const {
  int unread = 0;
  if (ioctl(socket_.get(), SIOCOUTQ, &unread) != 0 || unread == 0) {
    return ForWhom(options);
  }
  return "the agent at " + options.agent +
         (agent_pid_ <= 0 ? "" : " (pid " + std::to_string(agent_pid_) + ")") +
         ", which does not read what this rank has sent: is it stopped?";
}

Status RankSession::AwaitWelcome(const RankOptions& options, int timeout_ms,
                                 bool* closed) {
  Received r;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  StallNotice notice;
  Status s;
  do {
    // In steps of at most 1 s, so that a stall is reported.
    s = ReceiveMessage(socket_.get(), session::kMaxMessageBytes,
                       std::min(MillisecondsUntil(deadline), 1000), &r);
    const auto now = Clock::now();
    if (s.code() != Code::kDeadlineExceeded || !notice.Due(now)) continue;
    TellUser("maypole: " + WhoWaits(options) + " has waited " +
             std::to_string(notice.Stood(now).count()) + " s for " +
             Awaited(options) + "; it waits up to " +
             std::to_string(options.start_timeout_seconds) +
             " s (MAYPOLE_START_TIMEOUT)");
  } while (
      (s.code() == Code::kCancelled || s.code() == Code::kDeadlineExceeded) &&
      Clock::now() < deadline);
  if (s.code() == Code::kDeadlineExceeded) {
    const std::string awaited = Awaited(options);
    // An executor that is not stuck would have named the missing ranks.
    const bool executor = awaited == ForWhom(options);
    return Status(Code::kDeadlineExceeded,
                  WhoWaits(options) + " waited " +
                      std::to_string(options.start_timeout_seconds) +
                      " s for " + awaited +
                      (executor ? "; the executor of this node does not answer "
                                  "(agent " +
                                      options.agent +
                                      "): is it stopped? The agent's log names "
                                      "its process"
                                : ""));
  }
  if (!s.ok()) return s;
  if (r.data.empty()) {
    *closed = true;
    return Status();
  }
  return TakeWelcome(options, std::move(r));
}

Status RankSession::TakeWelcome(const RankOptions& options, Received r) {
  Status s = session::CheckHeader(r.data.data(), r.data.size(), "agent");
  if (!s.ok()) return s;
  if (session::TypeOf(r.data.data()) == session::Type::kRefused) {
    session::Refused refused;
    s = session::Parse(r.data.data(), r.data.size(), &refused);
    if (!s.ok()) return s;
    return Status(static_cast<Code>(refused.code), refused.text);
  }
  session::Welcome welcome;
  s = session::Parse(r.data.data(), r.data.size(), &welcome);
  if (!s.ok()) return s;
  if (r.fds.size() != 2) {
    return Status(Code::kResourceExhausted,
                  "the descriptors of the executor's welcome could not be "
                  "received; is this process out of file descriptors (ulimit "
                  "-n)?");
  }
  executor_wake_ = std::move(r.fds[1]);
  s = Board::Attach(std::move(r.fds[0]), &board_);
  if (!s.ok()) return s;
  version_ = welcome.header.version;
  local_rank_ = welcome.local_rank;
  checksums_ = welcome.checksums != 0;
  if (options.elastic && local_rank_ >= board_->config().local_size) {
    return Status(Code::kInternal, "the executor sent an invalid local rank");
  }
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  return Status();
}

Status RankSession::Send(const void* message, size_t bytes, int fd) {
  std::string copy(static_cast<const char*>(message), bytes);
  session::SetVersion(copy.data(), version_);
  return SendMessage(socket_.get(), copy.data(), copy.size(),
                     std::span(&fd, fd < 0 ? 0 : 1));
}

RankOptions RankSession::Placed(RankOptions options) const {
  options.agent = agent_;
  options.token = token_;
  const BoardConfig& config = board_->config();
  options.cross_rank = static_cast<int>(config.node_index);
  options.cross_size = static_cast<int>(config.nodes);
  if (!options.elastic) return options;
  options.rank = config.global_rank[local_rank_];
  options.size = static_cast<int>(config.size);
  options.local_rank = static_cast<int>(local_rank_);
  options.local_size = static_cast<int>(config.local_size);
  options.last_epoch = config.epoch;
  return options;
}

void RankSession::WakeExecutor() {
  const uint64_t one = 1;
  // If the eventfd's counter is full, the executor is awake already.
  (void)!write(executor_wake_.get(), &one, sizeof(one));
}

Status RankSession::NextMessage(std::vector<char>* message,
                                std::vector<Fd>* descriptors) {
  message->clear();
  Received r;
  Status s = ReceiveMessage(socket_.get(), session::kMaxMessageBytes, 0, &r);
  if (s.code() == Code::kDeadlineExceeded || s.code() == Code::kCancelled) {
    return Status();
  }
  if (!s.ok()) return s;
  if (r.data.empty()) {
    return Status(Code::kUnavailable, "the executor has closed the connection");
  }
  s = session::CheckHeader(r.data.data(), r.data.size(), "executor");
  if (!s.ok()) return s;
  *message = std::move(r.data);
  *descriptors = std::move(r.fds);
  return s;
}

void RankSession::Close() { shutdown(socket_.get(), SHUT_RDWR); }

void RankSession::Abandon() {
  socket_.Reset();
  executor_wake_.Reset();
  board_.reset();
}

}  // namespace maypole
