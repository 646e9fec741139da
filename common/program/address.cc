#include "common/program/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Resolved> Resolve(const Address& address) {
  const std::string host = WithoutBrackets(address.host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.Text(), ": ", gai_strerror(error)));
  }
  return Resolved(found, freeaddrinfo);
}

}  // namespace

std::string Address::Text() const { return absl::StrCat(host, ":", port); }

absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  if (colon != std::string::npos && colon > 0 &&
      absl::SimpleAtoi(text.substr(colon + 1), &address.port) &&
      address.port >= 0 && address.port <= 65535) {
    address.host = text.substr(0, colon);
    const bool bracketed =
        address.host.front() == '[' && address.host.back() == ']';
    if (bracketed || address.host.find(':') == std::string::npos) {
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      flag, "=", text,
      " is not HOST:PORT, as 127.0.0.1:4001 or [::1]:4001 (port 0: any)"));
}

bool IsLoopbackHost(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, WithoutBrackets(host).c_str(), &v6) != 1) {
    return false;
  }
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool IsLoopback(const Address& address) { return IsLoopbackHost(address.host); }

std::string WhyNotBound(const Address& address) {
  absl::StatusOr<Resolved> resolved = Resolve(address);
  if (!resolved.ok()) return std::string(resolved.status().message());
  const addrinfo& info = **resolved;
  const Fd socket(::socket(info.ai_family, info.ai_socktype, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), info.ai_addr, info.ai_addrlen) == 0 &&
      ::listen(socket.get(), 1) == 0) {
    return "unknown reason";
  }
  return ErrnoStatus(errno, address.Text()).message();
}

std::string WithoutBrackets(const std::string& host) {
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

Fd ConnectTcp(const Address& address, std::chrono::milliseconds timeout) {
  absl::StatusOr<Resolved> resolved = Resolve(address);
  if (!resolved.ok()) return Fd();
  for (const addrinfo* a = resolved->get(); a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   0));
    if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 &&
        errno != EINPROGRESS) {
      continue;
    }
    pollfd wait{fd.get(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    if (::poll(&wait, 1, static_cast<int>(timeout.count())) != 1 ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 ||
        error != 0) {
      continue;
    }
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    return fd;
  }
  return Fd();
}

void Knock(const Address& address) {
  absl::StatusOr<Resolved> resolved = Resolve(address);
  if (!resolved.ok()) return;
  const addrinfo& info = **resolved;
  const Fd socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK, 0));
  (void)::connect(socket.get(), info.ai_addr, info.ai_addrlen);
}

}  // namespace maypole
