#include "common/program/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Resolved> Resolve(const Address& address,
                                 int flags = AI_PASSIVE) {
  const std::string host = WithoutBrackets(address.host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.Text(), ": ", gai_strerror(error)));
  }
  return Resolved(found, freeaddrinfo);
}

// What a thread asks the resolver, which cannot be told to stop.
struct Question {
  std::mutex mutex;
  std::condition_variable changed;
  bool answered = false;
  Resolved found{nullptr, freeaddrinfo};
};

// Null: no address by then.
Resolved ResolveUntil(const Address& address,
                      std::chrono::steady_clock::time_point deadline) {
  absl::StatusOr<Resolved> numeric = Resolve(address, AI_NUMERICHOST);
  if (numeric.ok()) return *std::move(numeric);
  const auto question = std::make_shared<Question>();
  std::thread([question, address] {
    absl::StatusOr<Resolved> resolved = Resolve(address, 0);
    std::lock_guard lock(question->mutex);
    if (resolved.ok()) question->found = *std::move(resolved);
    question->answered = true;
    question->changed.notify_all();
  }).detach();
  std::unique_lock lock(question->mutex);
  question->changed.wait_until(lock, deadline,
                               [&] { return question->answered; });
  return std::exchange(question->found, Resolved(nullptr, freeaddrinfo));
}

Fd ConnectOne(const addrinfo& to, int timeout_ms) {
  Fd fd(
      ::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return Fd();
  }
  pollfd wait{fd.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  if (::poll(&wait, 1, timeout_ms) != 1 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 ||
      error != 0) {
    return Fd();
  }
  return fd;
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

int MillisLeft(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

Fd ConnectTcp(const Address& address,
              std::chrono::steady_clock::time_point deadline) {
  const Resolved resolved = ResolveUntil(address, deadline);
  int rest = 0;
  for (const addrinfo* a = resolved.get(); a != nullptr; a = a->ai_next) ++rest;
  for (const addrinfo* a = resolved.get(); a != nullptr; a = a->ai_next) {
    Fd fd = ConnectOne(*a, MillisLeft(deadline) / rest--);
    if (fd.valid()) return fd;
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
