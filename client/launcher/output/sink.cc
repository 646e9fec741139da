#include "client/launcher/output/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace maypole::launcher {

Status Sink::Open(OutputLoop* loop) {
  return Attach(loop, Fd(fcntl(fd_, F_DUPFD_CLOEXEC, 3)));
}

bool Sink::Writable() const {
  pollfd entry = {.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

void Sink::Flush() {
  while (!idle() && Writable()) {
    const std::string& pending = screen_.pending();
    size_t size = std::min<size_t>(pending.size(), PIPE_BUF);
    ssize_t n = write(fd_, pending.data(), size);
    if (n < 0 && errno == EINTR) continue;
    // EAGAIN: another process has made the descriptor non-blocking.
    if (n < 0 && errno == EAGAIN) return;
    // The reader is gone or the disk is full: the job continues without output.
    if (n < 0 && lost_.empty()) lost_ = strerror(errno);
    screen_.Consume(n < 0 ? pending.size() : static_cast<size_t>(n));
  }
}

}  // namespace maypole::launcher
