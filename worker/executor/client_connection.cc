#include "worker/executor/client_connection.h"

#include <fcntl.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/wire/unix_socket.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

bool IsFull(const Status& s) { return s.code() == Code::kResourceExhausted; }

// Returns the error to report; none if the peer has gone, which shows as a
// closed connection.
Status Judge(const Status& s) {
  if (s.ok() || s.code() == Code::kUnavailable) return Status();
  return Status(s.code(), "its connection failed: " + s.message());
}

}  // namespace

Status ClientConnection::Send(const void* data, size_t bytes,
                              std::span<const int> fds) {
  if (!unsent_.empty()) return Keep(data, bytes, fds);
  const Status s = SendMessage(socket_.get(), data, bytes, fds);
  return IsFull(s) ? Keep(data, bytes, fds) : Judge(s);
}

Status ClientConnection::Keep(const void* data, size_t bytes,
                              std::span<const int> fds) {
  if (unsent_.size() >= kMaxUnsentReplies) {
    return Status(Code::kResourceExhausted,
                  "it does not read the executor's messages");
  }
  const char* first = static_cast<const char*>(data);
  Unsent unsent{std::vector<char>(first, first + bytes), {}};
  for (const int fd : fds) {
    Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return ErrnoStatus(errno, "cannot duplicate a descriptor for it");
    }
    unsent.fds.push_back(std::move(copy));
  }
  unsent_.push_back(std::move(unsent));
  return Status();
}

Status ClientConnection::Flush() {
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    std::vector<int> fds;
    for (const Fd& fd : next.fds) fds.push_back(fd.get());
    const Status s =
        SendMessage(socket_.get(), next.data.data(), next.data.size(), fds);
    if (IsFull(s)) return Status();
    if (Status judged = Judge(s); !judged.ok()) return judged;
    unsent_.pop_front();
  }
  return Status();
}

}  // namespace maypole::worker
