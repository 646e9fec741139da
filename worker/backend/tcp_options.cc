#include "worker/backend/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

bool SetCongestion(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

std::string Congestion(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t size = sizeof(name) - 1;
  getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

// Of the processes without CAP_NET_ADMIN.
std::string AllowedCongestion() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::string names;
  std::getline(file, names);
  return names;
}

}  // namespace

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

absl::Status SetTcpCongestion(int fd, const std::string& name) {
  if (name == "system") return absl::OkStatus();
  if (name == "auto") {
    if (Congestion(fd) == "bbr") SetCongestion(fd, "cubic");
    return absl::OkStatus();
  }
  if (SetCongestion(fd, name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot use --network_congestion=", name, ": ", std::strerror(errno),
      "; expected auto, system, or one that this machine allows: ",
      AllowedCongestion()));
}

}  // namespace maypole::worker
