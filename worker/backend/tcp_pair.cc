#include "worker/backend/tcp_pair.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "worker/backend/tcp_transport.h"

namespace maypole::worker {
namespace {

// Bytes read in one call under the lock, for which a post of a receive waits.
constexpr uint64_t kMostInOneRead = 256 * 1024;
// Reads from one peer before the other peers are served.
constexpr int kReadsPerTurn = 16;

std::string ErrorText(int error) {
  std::string text = std::strerror(error);
  if (error == ETIMEDOUT) {
    text +=
        ": its machine has not answered within --network_timeout; check the "
        "network between the nodes";
  }
  return text;
}

[[noreturn]] void NotOffered(const char* what) {
  throw std::logic_error(std::string("TcpTransport does not support ") + what);
}

}  // namespace

// --- TcpBuffer ---------------------------------------------------------------

TcpBuffer::~TcpBuffer() {
  {
    std::lock_guard lock(mutex_);
    if (posted_ == 0) return;
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
  NotOffered("a receive from any node");
}

void TcpBuffer::Posted() {
  std::lock_guard lock(mutex_);
  ++posted_;
}

void TcpBuffer::Ended(Way* way, const std::string& failure) {
  // Notify under the lock: the waiting thread may destroy the buffer at once.
  std::lock_guard lock(mutex_);
  --posted_;
  if (failure.empty()) {
    ++way->ended;
  } else if (way->failure.empty()) {
    way->failure = failure;
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

// --- TcpPair: posting --------------------------------------------------------

void TcpPair::ThrowIfFailed() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void TcpPair::Adopt(Fd connection, int epoll) {
  std::lock_guard lock(mutex_);
  ThrowIfFailed();
  const int fd = connection.get();
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  fd_ = std::move(connection);
  epoll_ = epoll;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = node_;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_.get(), &event) != 0) {
    throw std::runtime_error(std::strerror(errno));
  }
}

void TcpPair::send(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
                   size_t offset, size_t bytes) {
  auto* const from = static_cast<TcpBuffer*>(buffer);
  std::lock_guard lock(mutex_);
  ThrowIfFailed();
  from->Posted();
  outgoing_.push_back({{slot, bytes},
                       from,
                       static_cast<const std::byte*>(buffer->ptr) + offset});
  if (!wants_write_) Write();
}

void TcpPair::recv(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
                   size_t offset, size_t bytes) {
  auto* const to = static_cast<TcpBuffer*>(buffer);
  std::lock_guard lock(mutex_);
  ThrowIfFailed();
  to->Posted();
  auto* const data = static_cast<std::byte*>(buffer->ptr) + offset;
  const auto it = early_.find(slot);
  if (it == early_.end()) {
    posted_[slot].push_back({to, data, bytes});
    return;
  }
  const Early early = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) early_.erase(it);
  early_bytes_ -= early.bytes;
  if (early.bytes != bytes) {
    posted_[slot].push_back({to, data, bytes});
    return Fail(
        "it has sent a message of another size than was "
        "expected");
  }
  if (bytes > 0) std::memcpy(data, early.data.get(), bytes);
  to->Received();
}

void TcpPair::Forget(TcpBuffer* buffer) {
  std::lock_guard lock(mutex_);
  const bool half_read = incoming_.placed && incoming_.to.buffer == buffer;
  const bool half_written = !outgoing_.empty() &&
                            outgoing_.front().buffer == buffer &&
                            outgoing_.front().written > 0;
  // The rest of the stream could no longer be parsed.
  if (half_read || half_written) {
    return Fail("a message was cancelled half-way", /*keep_open=*/true);
  }
  std::erase_if(outgoing_, [&](const Outgoing& o) {
    if (o.buffer != buffer) return false;
    buffer->SendFailed("cancelled");
    return true;
  });
  for (auto it = posted_.begin(); it != posted_.end();) {
    std::erase_if(it->second, [&](const Posted& p) {
      if (p.buffer != buffer) return false;
      buffer->ReceiveFailed("cancelled");
      return true;
    });
    it = it->second.empty() ? posted_.erase(it) : std::next(it);
  }
}

// --- TcpPair: ends -----------------------------------------------------------

void TcpPair::close() {
  std::lock_guard lock(mutex_);
  Fail("closed");
  fd_.Reset();
}

void TcpPair::Fail(const std::string& why, bool keep_open) {
  if (!failure_.empty()) return;
  failure_ = why;
  if (fd_.valid()) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_.get(), nullptr);
  if (!keep_open) fd_.Reset();
  for (const Outgoing& o : std::exchange(outgoing_, {})) {
    o.buffer->SendFailed(why);
  }
  const Incoming incoming = std::exchange(incoming_, {});
  if (incoming.placed && incoming.to.buffer != nullptr) {
    incoming.to.buffer->ReceiveFailed(why);
  }
  for (const auto& [slot, all] : std::exchange(posted_, {})) {
    for (const Posted& p : all) p.buffer->ReceiveFailed(why);
  }
  early_.clear();
  early_bytes_ = 0;
}

// --- TcpPair: writing --------------------------------------------------------

void TcpPair::WantWrite(bool wanted) {
  if (wants_write_ == wanted) return;
  wants_write_ = wanted;
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = node_;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_.get(), &event);
}

void TcpPair::Write() {
  while (!outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    iovec parts[2];
    size_t count = 0;
    if (next.written < sizeof(Header)) {
      parts[count++] = {
          reinterpret_cast<std::byte*>(&next.header) + next.written,
          sizeof(Header) - next.written};
    }
    const size_t done = next.written - std::min(next.written, sizeof(Header));
    if (done < next.header.bytes) {
      parts[count++] = {const_cast<std::byte*>(next.data) + done,
                        next.header.bytes - done};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return WantWrite(true);
      return Fail(ErrorText(errno));
    }
    next.written += static_cast<size_t>(n);
    if (next.written < sizeof(Header) + next.header.bytes) continue;
    TcpBuffer* const buffer = next.buffer;
    outgoing_.pop_front();
    buffer->Sent();
  }
  WantWrite(false);
}

void TcpPair::OnWritable() {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) Write();
}

// --- TcpPair: reading --------------------------------------------------------

void TcpPair::OnReadable() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    std::lock_guard lock(mutex_);
    if (!failure_.empty() || !Read()) return;
  }
}

bool TcpPair::Got(ssize_t n) {
  if (n > 0) return true;
  if (n == 0) {
    Fail("the peer has closed it");
  } else if (errno != EAGAIN && errno != EINTR) {
    Fail(ErrorText(errno));
  }
  return false;
}

bool TcpPair::Read() {
  Incoming& in = incoming_;
  if (!in.placed) {
    auto* const header = reinterpret_cast<std::byte*>(&in.header);
    const ssize_t n = ::recv(fd_.get(), header + in.header_read,
                             sizeof(Header) - in.header_read, 0);
    if (!Got(n)) return false;
    in.header_read += static_cast<size_t>(n);
    if (in.header_read < sizeof(Header)) return true;
    if (!Place()) return false;
  }
  if (in.read < in.header.bytes) {
    std::byte* const to =
        in.to.buffer != nullptr ? in.to.data : in.early.data.get();
    const ssize_t n =
        ::recv(fd_.get(), to + in.read,
               std::min(in.header.bytes - in.read, kMostInOneRead), 0);
    if (!Got(n)) return false;
    in.read += static_cast<uint64_t>(n);
  }
  if (in.read == in.header.bytes) Take();
  return true;
}

// Decides where the message goes. Returns false if the pair has failed.
bool TcpPair::Place() {
  Incoming& in = incoming_;
  const uint64_t bytes = in.header.bytes;
  const auto it = posted_.find(in.header.slot);
  if (it == posted_.end()) {
    if (bytes > kMaxEarlyBytes - early_bytes_) {
      Fail("it sends more than was expected");
      return false;
    }
    in.early = {
        std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]),
        bytes};
    if (in.early.data == nullptr) {
      Fail("there is no memory for its data");
      return false;
    }
    early_bytes_ += bytes;
  } else if (it->second.front().bytes != bytes) {
    Fail("it sends a message of another size than was expected");
    return false;
  } else {
    in.to = it->second.front();
    it->second.pop_front();
    if (it->second.empty()) posted_.erase(it);
  }
  in.placed = true;
  return true;
}

// The message is complete.
void TcpPair::Take() {
  Incoming in = std::exchange(incoming_, {});
  if (in.to.buffer != nullptr) return in.to.buffer->Received();
  const auto it = posted_.find(in.header.slot);
  if (it == posted_.end()) {
    early_[in.header.slot].push_back(std::move(in.early));
    return;
  }
  // Its receive was posted while it arrived.
  const Posted to = it->second.front();
  it->second.pop_front();
  if (it->second.empty()) posted_.erase(it);
  early_bytes_ -= in.early.bytes;
  if (to.bytes != in.early.bytes) {
    posted_[in.header.slot].push_back(to);
    return Fail(
        "it has sent a message of another size than was "
        "expected");
  }
  if (to.bytes > 0) std::memcpy(to.data, in.early.data.get(), to.bytes);
  to.buffer->Received();
}

// --- Not supported -----------------------------------------------------------

const gloo::transport::Address& TcpPair::address() const {
  NotOffered("addresses");
}
void TcpPair::connect(const std::vector<char>&) { NotOffered("connect()"); }
void TcpPair::setSync(bool, bool) { NotOffered("setSync()"); }
std::unique_ptr<gloo::transport::Buffer> TcpPair::createSendBuffer(int, void*,
                                                                   size_t) {
  NotOffered("bound buffers");
}
std::unique_ptr<gloo::transport::Buffer> TcpPair::createRecvBuffer(int, void*,
                                                                   size_t) {
  NotOffered("bound buffers");
}

}  // namespace maypole::worker
