#include "client/session/session_outbox.h"

#include <chrono>
#include <thread>
#include <utility>

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFlushTime = std::chrono::seconds(1);

}  // namespace

void SessionOutbox::Send(const void* message, size_t bytes, Fd fd) {
  std::lock_guard lock(mutex_);
  if (unsent_.empty() && TrySend(message, bytes, fd.get()).ok()) return;
  const char* first = static_cast<const char*>(message);
  unsent_.push_back({{first, first + bytes}, std::move(fd)});
}

bool SessionOutbox::SendIfRoom(const void* message, size_t bytes) {
  std::lock_guard lock(mutex_);
  return unsent_.empty() && TrySend(message, bytes, -1).ok();
}

Status SessionOutbox::SendNow(const void* message, size_t bytes) {
  std::lock_guard lock(mutex_);
  return session_->Send(message, bytes);
}

// A descriptor that cannot be sent must not hold up other messages: the
// executor refuses the message without it.
Status SessionOutbox::TrySend(const void* message, size_t bytes, int fd) {
  const Status s = session_->Send(message, bytes, fd);
  if (s.ok() || fd < 0 || s.code() == Code::kResourceExhausted ||
      s.code() == Code::kUnavailable) {
    return s;
  }
  return session_->Send(message, bytes);
}

Status SessionOutbox::Resend() {
  std::lock_guard lock(mutex_);
  while (!unsent_.empty()) {
    const auto& [message, fd] = unsent_.front();
    const Status s = TrySend(message.data(), message.size(), fd.get());
    if (!s.ok()) return s;
    unsent_.pop_front();
  }
  return Status();
}

void SessionOutbox::Flush() {
  const auto deadline = Clock::now() + kFlushTime;
  while (Resend().code() == Code::kResourceExhausted &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace maypole
