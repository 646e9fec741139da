#include "client/session/state_calls.h"

#include <chrono>
#include <string>
#include <utility>

namespace maypole {

Status StateCalls::Call(
    session::StateRequest request,
    const std::function<void(const session::StateRequest&)>& send, Fd* found,
    int timeout_ms) {
  std::lock_guard one(one_);
  {
    std::lock_guard lock(mutex_);
    if (!ended_.ok()) return ended_;
    request.number = ++number_;
    waiting_ = true;
    found_.Reset();
  }
  send(request);
  std::unique_lock lock(mutex_);
  const bool answered =
      changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                        [this] { return !waiting_ || !ended_.ok(); });
  if (waiting_ && !ended_.ok()) answer_ = ended_;
  waiting_ = false;
  if (!answered) {
    return Status(Code::kDeadlineExceeded,
                  "the executor of this node has not answered within " +
                      std::to_string(timeout_ms / 1000) +
                      " s; see the agent's log");
  }
  if (found != nullptr) *found = std::move(found_);
  return answer_;
}

bool StateCalls::OnReply(const session::StateReply& reply,
                         std::vector<Fd> descriptors) {
  std::lock_guard lock(mutex_);
  if (!waiting_ || reply.number != number_) return false;  // it came too late
  answer_ = Status(static_cast<Code>(reply.code), reply.text);
  if (!descriptors.empty()) found_ = std::move(descriptors.front());
  waiting_ = false;
  changed_.notify_all();
  return true;
}

void StateCalls::End(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!ended_.ok()) return;
  ended_ = why;
  changed_.notify_all();
}

}  // namespace maypole
