#include "worker/backend/tcp_user_timeout.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>

namespace maypole::worker {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

bool IsTcpConnection(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return false;  // not a socket, or a listening one
  }
  return peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
}

bool Bound(int fd, unsigned timeout_ms) {
  unsigned now = 0;
  socklen_t size = sizeof(now);
  return getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &now, &size) == 0 &&
         now == 0 &&
         setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
                    sizeof(timeout_ms)) == 0;
}

}  // namespace

int SetTcpUserTimeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return 0;
  const std::unique_ptr<DIR, CloseDirectory> fds(opendir("/proc/self/fd"));
  if (fds == nullptr) return 0;
  int bound = 0;
  while (const dirent* entry = readdir(fds.get())) {
    char* end = nullptr;
    const long fd = std::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != 0) continue;  // "." and ".."
    if (IsTcpConnection(static_cast<int>(fd)) &&
        Bound(static_cast<int>(fd), static_cast<unsigned>(timeout.count()))) {
      ++bound;
    }
  }
  return bound;
}

}  // namespace maypole::worker
