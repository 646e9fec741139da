#include "worker/session/connection.h"

#include "common/unix_socket.h"
#include "worker/core/limits.h"

namespace maypole::worker {

bool Connection::Send(const void* data, size_t bytes,
                      std::span<const int> fds) {
  if (unsent_.empty() && SendMessage(socket_.get(), data, bytes, fds).code() !=
                             Code::kResourceExhausted) {
    return true;
  }
  if (unsent_.size() >= kMaxUnsentReplies) return false;
  const char* first = static_cast<const char*>(data);
  unsent_.emplace_back(first, first + bytes);
  return true;
}

void Connection::Flush() {
  while (!unsent_.empty()) {
    const std::vector<char>& next = unsent_.front();
    if (SendMessage(socket_.get(), next.data(), next.size()).code() ==
        Code::kResourceExhausted) {
      return;
    }
    unsent_.pop_front();
  }
}

}  // namespace maypole::worker
