#include "worker/backend/tcp_buffer.h"

#include <stdexcept>

#include "worker/backend/tcp_pair.h"

namespace maypole::worker {

TcpBuffer::~TcpBuffer() {
  {
    std::lock_guard lock(mutex_);
    if (tag_.listener != nullptr || posted_ == 0) return;
  }
  for (TcpPair* pair : pairs_) {
    if (pair != nullptr) pair->Forget(this);
  }
}

size_t TcpBuffer::Bytes(size_t offset, size_t bytes) const {
  if (offset > size) throw std::out_of_range("an offset beyond the buffer");
  if (bytes == kUnspecifiedByteCount) return size - offset;
  if (bytes > size - offset) throw std::out_of_range("beyond the buffer");
  return bytes;
}

void TcpBuffer::send(int node, uint64_t slot, size_t offset, size_t bytes) {
  pairs_.at(static_cast<size_t>(node))
      ->send(this, slot, offset, Bytes(offset, bytes));
}

void TcpBuffer::recv(int node, uint64_t slot, size_t offset, size_t bytes) {
  pairs_.at(static_cast<size_t>(node))
      ->recv(this, slot, offset, Bytes(offset, bytes));
}

void TcpBuffer::recv(std::vector<int>, uint64_t, size_t, size_t) {
  throw std::logic_error(
      "TcpTransport does not support a receive from any node");
}

void TcpBuffer::Cancel(uint32_t node) { pairs_.at(node)->Forget(this); }

void TcpBuffer::Posted() {
  if (tag_.listener != nullptr) return;
  std::lock_guard lock(mutex_);
  ++posted_;
}

void TcpBuffer::Ended(Kind kind, const std::string& failure) {
  Way& way = kind == Kind::kSend ? sends_ : receives_;
  // Notify under the lock: the waiting thread may destroy the buffer at once.
  std::lock_guard lock(mutex_);
  --posted_;
  if (failure.empty()) {
    ++way.ended;
  } else if (way.failure.empty()) {
    way.failure = failure;
  }
  changed_.notify_all();
}

void TcpBuffer::Abort(Way* way) {
  std::lock_guard lock(mutex_);
  way->aborted = true;
  changed_.notify_all();
}

bool TcpBuffer::Wait(Way* way, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto over = [way] {
    return way->ended > 0 || way->aborted || !way->failure.empty();
  };
  if (timeout == gloo::transport::kUnsetTimeout) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_for(lock, timeout, over)) {
    throw std::runtime_error("timed out");
  }
  if (way->ended > 0) {
    --way->ended;
    return true;
  }
  if (!way->failure.empty()) throw std::runtime_error(way->failure);
  way->aborted = false;
  return false;
}

bool TcpBuffer::waitRecv(int*, std::chrono::milliseconds timeout) {
  return Wait(&receives_, timeout);
}

bool TcpBuffer::waitSend(int*, std::chrono::milliseconds timeout) {
  return Wait(&sends_, timeout);
}

}  // namespace maypole::worker
