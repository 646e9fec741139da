#include "common/program/address.h"

#include <netdb.h>
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
  std::string host = address.host;
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
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

bool IsLoopback(const Address& address) {
  return address.host == "localhost" || address.host == "[::1]" ||
         address.host.rfind("127.", 0) == 0;
}

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

void Knock(const Address& address) {
  absl::StatusOr<Resolved> resolved = Resolve(address);
  if (!resolved.ok()) return;
  const addrinfo& info = **resolved;
  const Fd socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK, 0));
  (void)::connect(socket.get(), info.ai_addr, info.ai_addrlen);
}

}  // namespace maypole
