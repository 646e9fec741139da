#include "worker/session/route.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/program/address.h"

namespace maypole::worker {
namespace {

// The numeric local address of a socket.
absl::StatusOr<std::string> LocalAddress(int fd) {
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host,
                  sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::InternalError("cannot read the own address");
  }
  return std::string(host);
}

// `host` without brackets.
absl::StatusOr<std::string> Towards(const std::string& host,
                                    const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot resolve '", host, "': ", gai_strerror(rc)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const Fd fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Connecting a datagram socket only asks the routing table.
    if (fd.valid() && connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) {
      return LocalAddress(fd.get());
    }
  }
  return absl::UnavailableError(
      absl::StrCat("no route to '", host, "': ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", peer, "' is not of the form HOST:PORT"));
  }
  std::string host = peer.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  return Towards(host, peer.substr(colon + 1));
}

absl::StatusOr<std::string> OwnAddress(const std::string& coordinator,
                                       const std::vector<std::string>& others) {
  const absl::StatusOr<std::string> own = LocalAddressTowards(coordinator);
  if (own.ok() && !IsLoopbackHost(*own)) return own;
  for (const std::string& other : others) {
    if (other.empty() || IsLoopbackHost(other)) continue;
    const absl::StatusOr<std::string> towards = Towards(other, "");
    if (towards.ok() && !IsLoopbackHost(*towards)) return towards;
  }
  return own;  // all are on this machine
}

}  // namespace maypole::worker
