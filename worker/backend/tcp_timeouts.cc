#include "worker/backend/tcp_timeouts.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace maypole::worker {

absl::Status SetTcpTimeouts(int fd, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return absl::OkStatus();
  const auto set = [fd](int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
  };
  const auto milliseconds = static_cast<int>(timeout.count());
  const int step_seconds = std::max(1, milliseconds / 6000);
  // The user timeout also says when unanswered probes are enough, so
  // TCP_KEEPCNT has no effect (tcp(7)).
  if (set(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds) &&
      set(IPPROTO_TCP, TCP_KEEPIDLE, 2 * step_seconds) &&
      set(IPPROTO_TCP, TCP_KEEPINTVL, step_seconds) &&
      set(SOL_SOCKET, SO_KEEPALIVE, 1)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("cannot set the timeouts of a connection between nodes: ",
                   std::strerror(errno)));
}

}  // namespace maypole::worker
