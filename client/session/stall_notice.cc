#include "client/session/stall_notice.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>

namespace maypole {
namespace {

std::atomic<bool> shown{true};

}  // namespace

void ShowNotices(bool show) { shown.store(show); }

void TellUser(const std::string& line) {
  if (!shown.load()) return;
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  const std::string text = line + "\n";
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace maypole
