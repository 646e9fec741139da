#include "worker/session/route.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/fd.h"

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
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int rc =
      getaddrinfo(host.c_str(), peer.substr(colon + 1).c_str(), &hints, &found);
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

}  // namespace maypole::worker
