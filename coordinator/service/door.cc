#include "coordinator/service/door.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

constexpr int kBacklog = 1024;
// With no descriptor left at all: until others are closed.
constexpr std::chrono::milliseconds kPause(50);

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Resolved> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return Resolved(found, freeaddrinfo);
}

// Of the listener; connections inherit it.
void SetOptions(int fd, int family, int user_timeout_ms) {
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms,
             sizeof(user_timeout_ms));
  if (family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
}

void SetPort(sockaddr* address, int port) {
  const in_port_t network = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = network;
  }
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// One listener for each address that works; an error if none does.
absl::StatusOr<std::vector<Fd>> BindAll(const std::string& host, int port,
                                        int user_timeout_ms) {
  absl::StatusOr<Resolved> resolved = Resolve(host, port);
  if (!resolved.ok()) return resolved.status();
  std::vector<Fd> out;
  Status last;
  for (addrinfo* a = resolved->get(); a != nullptr; a = a->ai_next) {
    if (!out.empty()) SetPort(a->ai_addr, PortOf(out.front().get()));
    Fd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.valid()) SetOptions(fd.get(), a->ai_family, user_timeout_ms);
    if (fd.valid() && bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        listen(fd.get(), kBacklog) == 0) {
      out.push_back(std::move(fd));
    } else {
      last = ErrnoStatus(errno, Address{host, port}.Text());
    }
  }
  if (out.empty()) return ToAbsl(last);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Listen(const Address& address,
                                                   int user_timeout_ms) {
  const std::string host = WithoutBrackets(address.host);
  const bool all = host == "0.0.0.0" || host == "::";
  absl::StatusOr<std::vector<Fd>> listeners =
      BindAll(all ? "::" : host, address.port, user_timeout_ms);
  // A machine without IPv6.
  if (!listeners.ok() && all) {
    listeners = BindAll("0.0.0.0", address.port, user_timeout_ms);
  }
  if (!listeners.ok()) return listeners.status();
  std::unique_ptr<Door> door(new Door);
  door->listeners_ = *std::move(listeners);
  door->port_ = PortOf(door->listeners_.front().get());
  door->wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Without it the thread could not be ended.
  if (!door->wake_.valid()) return ToAbsl(ErrnoStatus(errno, "eventfd"));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  door->most_ = most - std::min(kReservedDescriptors, most / 4);
  return door;
}

Door::~Door() { Close(); }

void Door::Open(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Door::Close() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void Door::Run() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  for (const Fd& l : listeners_) fds.push_back({l.get(), POLLIN, 0});
  for (;;) {
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) Accept(fds[i].fd);
    }
  }
}

void Door::Accept(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kPause);
    return;
  }
  // The kernel gives the lowest number that is free.
  const bool crowded = fd.get() >= most_;
  if (crowded != crowded_) {
    crowded_ = crowded;
    if (crowded) {
      spdlog::warn(
          "event=crowded open_files={} hint=\"new connections are hung up on; "
          "raise the limit (ulimit -n), or see who connects\"",
          most_);
    } else {
      spdlog::info("event=not_crowded");
    }
  }
  if (crowded) return;
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd.Release();
  acceptor_->HandleNewConnection(&connection);
}

}  // namespace maypole::coordinator
