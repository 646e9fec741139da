#include "common/metrics/server.h"

#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/absl_status.h"
#include "common/program/listener.h"

namespace maypole {
namespace {

constexpr std::chrono::milliseconds kAcceptPause(50);

EventLoop::Time In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Returns "/metrics" for "GET /metrics?x=1 HTTP/1.1\r\n..."; empty if the
// request is not a GET.
std::string_view PathOf(std::string_view request) {
  constexpr std::string_view kGet = "GET ";
  if (request.substr(0, kGet.size()) != kGet) return {};
  request.remove_prefix(kGet.size());
  return request.substr(0, request.find_first_of(" ?\r\n"));
}

std::string Http(absl::string_view status, absl::string_view body) {
  return absl::StrCat("HTTP/1.1 ", status,
                      "\r\nContent-Type: text/plain; version=0.0.4; "
                      "charset=utf-8\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const Address& address, Collectables collectables, Times times) {
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(std::move(collectables), times));
  if (absl::Status status = server->Listen(address); !status.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics: ", status.message(),
        "; choose another --metrics, or end the program that holds the port"));
  }
  server->thread_ = std::thread([s = server.get()] { s->Run(); });
  return server;
}

absl::Status MetricsServer::Listen(const Address& address) {
  absl::StatusOr<TcpListener> listener = ListenTcp(address, {});
  if (!listener.ok()) return listener.status();
  port_ = listener->port;
  listeners_ = std::vector<WatchedFd>(listener->fds.size());
  for (size_t i = 0; i < listeners_.size(); ++i) {
    WatchedFd* watched = &listeners_[i];
    const Status status = loop_.Watch(
        std::move(listener->fds[i]),
        {.readable = [this, watched] { Accept(watched); }}, watched);
    if (!status.ok()) return ToAbsl(status);
  }
  return absl::OkStatus();
}

MetricsServer::~MetricsServer() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { stopped_ = true; });
  thread_.join();
}

void MetricsServer::Run() {
  while (!stopped_) {
    std::optional<EventLoop::Time> deadline;
    for (const auto& [network, c] : connections_) {
      if (!deadline || c.deadline < *deadline) deadline = c.deadline;
    }
    if (!loop_.RunOnce(deadline).ok()) return;
    DropOverdue();
  }
}

void MetricsServer::DropOverdue() {
  const EventLoop::Time now = In({});
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto next = std::next(it);
    if (it->value.deadline <= now) Drop(it);
    it = next;
  }
}

void MetricsServer::Drop(Connections::Iterator it) {
  // SO_LINGER with 0: also discards data that the peer has not read yet.
  const linger at_once{1, 0};
  setsockopt(it->value.fd.fd(), SOL_SOCKET, SO_LINGER, &at_once,
             sizeof(at_once));
  connections_.Erase(it);
}

void MetricsServer::Accept(WatchedFd* listener) {
  Fd fd(
      accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return Add(std::move(fd));
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
      errno != ENOMEM) {
    return;
  }
  // The listeners would stay readable, and the loop would spin.
  for (WatchedFd& l : listeners_) l.WantRead(false);
  accept_again_.Set(In(kAcceptPause));
}

void MetricsServer::Add(Fd fd) {
  const auto it = connections_.Add(NetworkOf(fd.get()));
  it->value.deadline = In(times_.request);
  const Status status = loop_.Watch(std::move(fd),
                                    {.readable = [this, it] { Read(it); },
                                     .writable = [this, it] { Write(it); }},
                                    &it->value.fd);
  if (!status.ok()) {
    connections_.Erase(it);
  } else if (const auto surplus = connections_.Surplus()) {
    Drop(*surplus);
  }
}

void MetricsServer::Read(Connections::Iterator it) {
  Connection& connection = it->value;
  char part[4096];
  const ssize_t n = recv(connection.fd.fd(), part, sizeof(part), 0);
  if (n < 0 && (WouldBlock() || errno == EINTR)) return;
  if (n > 0) connection.request.append(part, static_cast<size_t>(n));
  if (n <= 0 || connection.request.size() > kMaxRequestBytes) {
    connections_.Erase(it);
    return;
  }
  if (!absl::StrContains(connection.request, "\r\n\r\n")) return;
  connection.reply = ReplyTo(connection.request);
  connection.deadline = In(times_.reply);
  connection.fd.WantRead(false);
  connection.fd.WantWrite(true);
}

void MetricsServer::Write(Connections::Iterator it) {
  std::string& reply = it->value.reply;
  const ssize_t n =
      send(it->value.fd.fd(), reply.data(), reply.size(), MSG_NOSIGNAL);
  if (n < 0 && (WouldBlock() || errno == EINTR)) return;
  if (n > 0) reply.erase(0, static_cast<size_t>(n));
  if (n < 0 || reply.empty()) connections_.Erase(it);
}

std::string MetricsServer::ReplyTo(const std::string& request) const {
  const std::string_view path = PathOf(request);
  if (path.empty()) return Http("405 Method Not Allowed", "only GET\n");
  if (path != "/metrics") return Http("404 Not Found", "see /metrics\n");
  return Http("200 OK", Page());
}

std::string MetricsServer::Page() const {
  std::vector<prometheus::MetricFamily> all;
  for (const auto& collectable : collectables_) {
    std::vector<prometheus::MetricFamily> some = collectable->Collect();
    all.insert(all.end(), std::make_move_iterator(some.begin()),
               std::make_move_iterator(some.end()));
  }
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace maypole
