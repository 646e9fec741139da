#include "common/program/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "common/absl_status.h"
#include "common/address.h"

namespace maypole {
namespace {

constexpr int kBacklog = 1024;

// Sets the listener's options; connections inherit them.
void SetOptions(int fd, int family, const ListenOptions& options) {
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &options.user_timeout_ms,
             sizeof(options.user_timeout_ms));
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

absl::StatusOr<TcpListener> BindAll(const std::string& host, int port,
                                    const ListenOptions& options) {
  int error = 0;
  const Addresses resolved = Resolve(host, port, AI_PASSIVE, &error);
  if (resolved == nullptr) return absl::UnavailableError(gai_strerror(error));
  TcpListener out;
  Status last;
  for (addrinfo* a = resolved.get(); a != nullptr; a = a->ai_next) {
    if (!out.fds.empty()) SetPort(a->ai_addr, out.port);
    Fd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.valid()) SetOptions(fd.get(), a->ai_family, options);
    if (fd.valid() && bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        listen(fd.get(), kBacklog) == 0) {
      out.port = PortOf(fd.get());
      out.fds.push_back(std::move(fd));
    } else {
      last = ErrnoStatus(errno, Address{host, port}.Text());
    }
  }
  if (out.fds.empty()) return ToAbsl(last);
  return out;
}

}  // namespace

absl::StatusOr<TcpListener> ListenTcp(const Address& address,
                                      const ListenOptions& options) {
  const std::string host = WithoutBrackets(address.host);
  const bool all = host == "0.0.0.0" || host == "::";
  absl::StatusOr<TcpListener> listener =
      BindAll(all ? "::" : host, address.port, options);
  // The machine may not have IPv6.
  if (!listener.ok() && all) {
    listener = BindAll("0.0.0.0", address.port, options);
  }
  return listener;
}

}  // namespace maypole
