#include "coordinator/service/accept_loop.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/absl_status.h"
#include "common/program/listener.h"
#include "coordinator/service/peer.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

// How long to wait when no descriptor is left at all.
constexpr std::chrono::milliseconds kPause(50);
constexpr std::chrono::milliseconds kTick(500);

EventLoop::Time In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

int FirstReserved() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  return most - std::min(kReservedDescriptors, most / 4);
}

// False if the peer has gone, or does not read: what is sent here fits into the
// buffer of every socket.
bool SendAll(int fd, absl::string_view bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

AcceptLoop::AcceptLoop(const AcceptOptions& options)
    : options_(options),
      most_(FirstReserved()),
      callers_(std::min(options.tls ? kMaxTlsStrangers : kMaxStrangers,
                        static_cast<size_t>(most_) / 2)) {}

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Listen(
    const Address& address, const AcceptOptions& options) {
  absl::StatusOr<TcpListener> listener =
      ListenTcp(address, {.user_timeout_ms = options.user_timeout_ms});
  if (!listener.ok()) return listener.status();
  std::unique_ptr<AcceptLoop> accept_loop(new AcceptLoop(options));
  accept_loop->port_ = listener->port;
  accept_loop->listeners_ = std::vector<WatchedFd>(listener->fds.size());
  for (size_t i = 0; i < listener->fds.size(); ++i) {
    const int fd = listener->fds[i].get();
    const Status watched = accept_loop->loop_.Watch(
        std::move(listener->fds[i]),
        {.readable = [loop = accept_loop.get(), fd] { loop->Accept(fd); }},
        &accept_loop->listeners_[i]);
    if (!watched.ok()) return ToAbsl(watched);
  }
  return accept_loop;
}

AcceptLoop::~AcceptLoop() { Close(); }

void AcceptLoop::Open(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void AcceptLoop::Close() {
  if (thread_.joinable()) {
    loop_.Post([this] { stopped_ = true; });
    thread_.join();
  }
  listeners_.clear();
}

void AcceptLoop::Run() {
  tick_.Set(In(kTick));
  while (!stopped_ && loop_.RunOnce().ok()) {
  }
}

void AcceptLoop::Tick() {
  tick_.Set(In(kTick));
  options_.refusals->Flush();
  const EventLoop::Time now = In({});
  for (auto it = callers_.begin(); it != callers_.end();) {
    it = it->value.deadline <= now ? callers_.Erase(it) : std::next(it);
  }
}

void AcceptLoop::WatchListeners(bool wanted) {
  for (WatchedFd& l : listeners_) l.WantRead(wanted);
}

void AcceptLoop::Accept(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) {
      WatchListeners(false);
      accept_again_.Set(In(kPause));
    }
    return;
  }
  if (IsCrowded(fd.get())) return;
  if (!options_.credentials.KeepsStrangersOut() && !options_.tls) {
    PassToGrpc(fd.Release(), "");
  } else {
    Add(std::move(fd));
  }
}

bool AcceptLoop::IsCrowded(int descriptor) {
  // The kernel assigns the lowest free number.
  const bool crowded = descriptor >= most_;
  if (crowded != crowded_) {
    crowded_ = crowded;
    if (crowded) {
      spdlog::warn(
          "event=crowded open_files={} hint=\"new connections are closed; "
          "raise the limit (ulimit -n), or find out which clients connect\"",
          most_);
    } else {
      spdlog::info("event=not_crowded");
    }
  }
  return crowded;
}

void AcceptLoop::PassToGrpc(int fd, const std::string& first) {
  Acceptor::NewConnectionParameters connection;
  connection.fd = fd;
  const grpc::Slice slice(first);
  if (!first.empty()) connection.read_buffer = grpc::ByteBuffer(&slice, 1);
  acceptor_->HandleNewConnection(&connection);
}

void AcceptLoop::Add(Fd fd) {
  const int socket = fd.get();
  const Callers::Iterator it = callers_.Add(NetworkOf(socket));
  Caller& caller = it->value;
  caller.peer = PeerOf(socket);
  caller.deadline = In(kHandshakeTime);
  caller.last_deadline = In(kFirstCallTime);
  if (!DropSurplus(it)) {
    callers_.Erase(it);
    return;
  }
  if (options_.tls) {
    caller.copy = Fd(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    PassToGrpc(fd.Release(), "");
    return;
  }
  const bool ok = SendAll(socket, kServerPreface) &&
                  loop_
                      .Watch(std::move(fd),
                             {.readable = [this, it] { Read(it); }}, &caller.fd)
                      .ok();
  if (!ok) callers_.Erase(it);
}

bool AcceptLoop::DropSurplus(Callers::Iterator newcomer) {
  const auto surplus = callers_.Surplus();
  if (!surplus) return true;
  Caller& caller = (*surplus)->value;
  options_.refusals->Report(
      caller.peer,
      "too many connections that have not called: one of the "
      "address with the most of them is closed");
  if (*surplus == newcomer) return false;
  if (options_.tls && caller.deadline > In(kHandshakeTime - kTlsPlace)) {
    const auto count = [this](uint64_t network) {
      return std::ranges::count(callers_, network, &Callers::Stranger::network);
    };
    if (count(newcomer->network) >= count((*surplus)->network)) return false;
  }
  // gRPC closes its own descriptor when it sees the end.
  if (caller.copy.valid()) shutdown(caller.copy.get(), SHUT_RDWR);
  callers_.Erase(*surplus);
  return true;
}

void AcceptLoop::Read(Callers::Iterator it) {
  Caller& caller = it->value;
  char part[kMaxFirstBytes];
  const ssize_t n = recv(caller.fd.fd(), part, sizeof(part), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    callers_.Erase(it);
    return;
  }
  // A refused caller still reads why. If we closed the socket with unread data,
  // our kernel would reset the connection, and the caller's kernel would drop
  // what we sent.
  if (caller.refused) return;
  const FirstRequest::State state =
      caller.first.Read({part, static_cast<size_t>(n)});
  if (state != FirstRequest::State::kPreface) {
    caller.deadline = caller.last_deadline;
  }
  if (state == FirstRequest::State::kMalformed ||
      !SendAll(caller.fd.fd(), caller.first.TakeReplies())) {
    callers_.Erase(it);
  } else if (state == FirstRequest::State::kComplete) {
    Decide(it);
  }
}

void AcceptLoop::Decide(Callers::Iterator it) {
  Caller& caller = it->value;
  const HeaderValue given = caller.first.Secret();
  const Credentials& credentials =
      given.huffman ? options_.huffman_credentials : options_.credentials;
  const grpc::Status status = credentials.CheckStranger(given.bytes);
  if (status.ok()) {
    const std::string first = caller.first.bytes();
    const int fd = caller.fd.Release().Release();
    callers_.Erase(it);
    PassToGrpc(fd, first);
    return;
  }
  options_.refusals->Report(caller.peer, status.error_message());
  caller.refused = true;
  caller.deadline = In(kRefusalTime);
  // The caller closes the connection, as the refusal's GOAWAY asks it to. If
  // our end came with the refusal, gRPC would replace its status by "Socket
  // closed".
  if (!SendAll(caller.fd.fd(), caller.first.Refusal(status))) {
    callers_.Erase(it);
  }
}

void AcceptLoop::Admitted(const std::string& peer) {
  if (!options_.tls) return;
  loop_.Post([this, peer] {
    for (auto it = callers_.begin(); it != callers_.end(); ++it) {
      if (!SamePeer(it->value.peer, peer)) continue;
      callers_.Erase(it);
      return;
    }
  });
}

}  // namespace maypole::coordinator
