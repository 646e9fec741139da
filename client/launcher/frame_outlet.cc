#include "client/launcher/frame_outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <utility>

namespace maypole::launcher {

FrameOutlet::FrameOutlet(Fd fd, size_t limit)
    : fd_(std::move(fd)), limit_(limit) {
  fcntl(fd_.get(), F_SETFL, fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

void FrameOutlet::SendBytes(const std::string& bytes) {
  if (!fd_.valid()) return;
  pending_ += bytes;
  Flush();
}

void FrameOutlet::Close() {
  fd_.Reset();
  pending_.clear();
}

void FrameOutlet::Flush() {
  while (!idle()) {
    ssize_t n = write(fd_.get(), pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return Close();  // the reader is gone
    pending_.erase(0, static_cast<size_t>(n));
  }
}

void FrameOutlet::Finish(std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  while (Flush(), !idle()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    pollfd entry = {.fd = fd_.get(), .events = POLLOUT, .revents = 0};
    poll(&entry, 1, static_cast<int>(left.count()));
  }
}

}  // namespace maypole::launcher
