#include "client/session/stall_notice.h"

#include <poll.h>
#include <unistd.h>

namespace maypole {

void TellUser(const std::string& line) {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  const std::string text = line + "\n";
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace maypole
