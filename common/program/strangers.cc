#include "common/program/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

namespace maypole {

uint64_t NetworkOf(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return 0;
  }
  constexpr uint64_t kV4 = uint64_t{0xffff} << 32;  // as the mapped addresses
  if (peer.ss_family == AF_INET) {
    return kV4 | ntohl(reinterpret_cast<sockaddr_in&>(peer).sin_addr.s_addr);
  }
  if (peer.ss_family != AF_INET6) return 0;
  const in6_addr& address = reinterpret_cast<sockaddr_in6&>(peer).sin6_addr;
  uint32_t words[4];
  std::memcpy(words, &address, sizeof(words));
  if (IN6_IS_ADDR_V4MAPPED(&address)) return kV4 | ntohl(words[3]);
  return uint64_t{ntohl(words[0])} << 32 | ntohl(words[1]);
}

}  // namespace maypole
