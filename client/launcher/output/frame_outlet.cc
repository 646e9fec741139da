#include "client/launcher/output/frame_outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace maypole::launcher {

Status FrameOutlet::Open(OutputLoop* loop, Fd fd) {
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return Attach(loop, std::move(fd));
}

void FrameOutlet::SendBytes(const std::string& bytes) {
  if (fd() < 0) return;
  pending_ += bytes;
  Flush();
}

void FrameOutlet::Close() {
  Detach();
  pending_.clear();
}

void FrameOutlet::Flush() {
  while (!idle()) {
    ssize_t n = write(fd(), pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return Close();  // the reader is gone
    pending_.erase(0, static_cast<size_t>(n));
  }
}

}  // namespace maypole::launcher
