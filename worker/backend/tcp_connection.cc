#include "worker/backend/tcp_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "worker/backend/tcp_loop.h"

namespace maypole::worker {
namespace {

// Bytes read in one call, for whose end a cancellation waits.
constexpr uint64_t kMostInOneRead = 256 * 1024;
// Reads from one peer before the other peers are served.
constexpr int kReadsPerTurn = 16;

constexpr char kOtherSize[] =
    "it has sent a message of another size than was expected";

}  // namespace

// --- Telling -----------------------------------------------------------------

TcpConnection::Notices::~Notices() {
  if (on_failed_ != nullptr) (*on_failed_)(why_);
  for (const auto& [tag, failure] : ended_) {
    tag.listener->OnEnded(tag.tag, failure);
  }
}

// --- Posting -----------------------------------------------------------------

TcpConnection::TcpConnection(TcpLoop* loop, uint64_t early_bytes,
                             OnFailed on_failed)
    : loop_(loop),
      most_early_bytes_(early_bytes),
      on_failed_(std::move(on_failed)) {}

TcpConnection::~TcpConnection() { Close(); }

void TcpConnection::Adopt(PeerStream stream) {
  Notices notices;
  Lock lock(mutex_);
  if (!failure_.empty()) return;
  stream_ = std::move(stream);
  stream_.OnSocket([this] { OnSocket(); });
  if (!loop_->Add(stream_.fd(), this)) {
    Fail(lock, notices, std::strerror(errno));
  }
}

void TcpConnection::Send(uint64_t slot, const std::byte* data, uint64_t bytes,
                         TransferTag tag) {
  Notices notices;
  Lock lock(mutex_);
  if (!failure_.empty()) return notices.Add(tag, failure_);
  outgoing_.push_back({{slot, bytes}, data, tag});
  if (!writing_ && !wants_write_ && !suspended_) Write(lock, notices);
}

void TcpConnection::Receive(uint64_t slot, std::byte* data, uint64_t bytes,
                            TransferTag tag) {
  Notices notices;
  Lock lock(mutex_);
  if (!failure_.empty()) return notices.Add(tag, failure_);
  const auto it = std::find_if(early_.begin(), early_.end(),
                               [&](const Early& e) { return e.slot == slot; });
  if (it == early_.end()) {
    posted_.push_back({slot, data, bytes, tag});
    return;
  }
  const Early early = std::move(*it);
  early_.erase(it);
  early_bytes_ -= early.bytes;
  if (early.bytes != bytes) {
    posted_.push_back({slot, data, bytes, tag});
    return Fail(lock, notices, kOtherSize);
  }
  if (bytes > 0) std::memcpy(data, early.data.get(), bytes);
  notices.Add(tag, "");
  if (early_bytes_ < most_early_bytes_ && !wants_read_) {
    Want(true, wants_write_);
    ReadAgain();
  }
}

TcpConnection::Posted TcpConnection::TakePosted(uint64_t slot) {
  const auto it = std::find_if(posted_.begin(), posted_.end(),
                               [&](const Posted& p) { return p.slot == slot; });
  if (it == posted_.end()) return {};
  const Posted posted = *it;
  posted_.erase(it);
  return posted;
}

void TcpConnection::Cancel(const TransferListener* listener) {
  Notices notices;
  Lock lock(mutex_);
  AwaitPause(lock);
  const auto is_its = [listener](const auto& transfer) {
    return transfer.tag.listener == listener;
  };
  const bool half_read = incoming_.active && is_its(incoming_.to);
  const bool half_written = !outgoing_.empty() && is_its(outgoing_.front()) &&
                            outgoing_.front().written > 0;
  // The rest of the stream could no longer be parsed.
  if (half_read || half_written) {
    return Fail(lock, notices, "a message was cancelled half-way",
                /*keep_open=*/true);
  }
  const auto cancels = [&](const auto& transfer) {
    if (!is_its(transfer)) return false;
    notices.Add(transfer.tag, "cancelled");
    return true;
  };
  std::erase_if(outgoing_, cancels);
  std::erase_if(posted_, cancels);
}

// --- Ends --------------------------------------------------------------------

void TcpConnection::Close() {
  Notices notices;
  Lock lock(mutex_);
  Fail(lock, notices, "closed");
  stream_.Reset();
}

void TcpConnection::AwaitPause(Lock& lock) {
  paused_.wait(lock, [this] { return !reading_ && !writing_; });
}

void TcpConnection::Fail(Lock& lock, Notices& notices, const std::string& why,
                         bool keep_open) {
  AwaitPause(lock);
  if (!failure_.empty()) return;
  failure_ = why;
  notices.AddFailure(&on_failed_, why);
  if (stream_.valid()) loop_->Remove(stream_.fd());
  if (!keep_open) stream_.Reset();
  for (const Outgoing& o : std::exchange(outgoing_, {})) {
    notices.Add(o.tag, why);
  }
  const Incoming incoming = std::exchange(incoming_, {});
  if (incoming.active && incoming.to.tag.listener != nullptr) {
    notices.Add(incoming.to.tag, why);
  }
  for (const Posted& p : std::exchange(posted_, {})) {
    notices.Add(p.tag, why);
  }
  early_.clear();
  early_bytes_ = 0;
}

void TcpConnection::Lose(Lock& lock, Notices& notices, int error,
                         const std::string& why) {
  AwaitPause(lock);
  if (!failure_.empty()) return;
  if (!stream_.Suspend(error)) return Fail(lock, notices, why);
  loop_->Remove(stream_.fd());
  suspended_ = true;
}

void TcpConnection::OnSocket() {
  Notices notices;
  Lock lock(mutex_);
  AwaitPause(lock);
  if (!failure_.empty()) return;
  if (stream_.Move()) {
    loop_->Remove(stream_.fd());
    suspended_ = true;
    return;
  }
  if (!stream_.CanResume()) return;
  loop_->Remove(stream_.fd());
  stream_.Resume();
  suspended_ = true;  // until the peer says what it has
  wants_read_ = true;
  wants_write_ = false;
  if (!loop_->Add(stream_.fd(), this)) {
    return Fail(lock, notices, std::strerror(errno));
  }
  ReadAgain();
}

// --- Writing -----------------------------------------------------------------

void TcpConnection::Want(bool read, bool write) {
  if (wants_read_ == read && wants_write_ == write) return;
  wants_read_ = read;
  wants_write_ = write;
  loop_->Change(stream_.fd(), this, read, write);
}

void TcpConnection::ReadAgain() {
  if (stream_.buffers()) loop_->Again(this);
}

void TcpConnection::Write(Lock& lock, Notices& notices) {
  int error = 0;
  writing_ = true;
  while (error == 0 && (!outgoing_.empty() || stream_.has_unsent())) {
    // A resumed stream may have to repeat what had been sent.
    Outgoing nothing{.written = sizeof(Header)};
    // It stays where it is: others only append meanwhile.
    Outgoing& next = outgoing_.empty() ? nothing : outgoing_.front();
    lock.unlock();
    iovec parts[2];
    int count = 0;
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
    const ssize_t n = stream_.Write(parts, count);
    if (n < 0) error = errno;
    const bool unsent = stream_.has_unsent();
    lock.lock();
    if (n < 0) continue;
    next.written += static_cast<size_t>(n);
    if (unsent || next.written < sizeof(Header) + next.header.bytes) continue;
    if (&next == &nothing) continue;
    notices.Add(next.tag, "");
    outgoing_.pop_front();
  }
  writing_ = false;
  paused_.notify_all();
  if (error == 0 || error == EAGAIN) return Want(wants_read_, error == EAGAIN);
  Lose(lock, notices, error, ConnectionErrorText(error));
}

void TcpConnection::OnWritable() {
  Notices notices;
  Lock lock(mutex_);
  if (failure_.empty() && !writing_ && !suspended_) Write(lock, notices);
}

// --- Reading -----------------------------------------------------------------

void TcpConnection::OnReadable() {
  bool more = true;
  for (int i = 0; i < kReadsPerTurn && more; ++i) more = Read();
  Notices notices;
  Lock lock(mutex_);
  if (more) ReadAgain();
  // The peer has said what it has of the stream.
  if (suspended_ && failure_.empty() && stream_.can_write()) {
    suspended_ = false;
    if (!writing_) Write(lock, notices);
  }
}

void TcpConnection::OnAgain() {
  {
    Lock lock(mutex_);
    if (!wants_read_) return;
  }
  OnReadable();
}

bool TcpConnection::Read() {
  Notices notices;
  Lock lock(mutex_);
  if (!failure_.empty()) return false;
  Incoming& in = incoming_;
  const bool enough = early_bytes_ >= most_early_bytes_;
  if (!in.active && enough) {
    // If nothing more was wanted before, this reports a broken connection.
    if (!wants_read_) {
      Lose(lock, notices, stream_.TakeError(), "it was reset");
      return false;
    }
    Want(false, wants_write_);
    return false;
  }
  // The rest of a message and the header of the next one.
  iovec parts[2];
  int count = 0;
  const uint64_t rest = in.bytes - in.read;
  const uint64_t now = in.active ? std::min(rest, kMostInOneRead) : 0;
  if (now > 0) {
    std::byte* const to =
        in.to.tag.listener != nullptr ? in.to.data : in.early.data.get();
    parts[count++] = {to + in.read, now};
  }
  const uint64_t header =
      now == rest && !enough ? sizeof(Header) - header_read_ : 0;
  if (header > 0) {
    parts[count++] = {reinterpret_cast<std::byte*>(&header_) + header_read_,
                      header};
  }
  reading_ = true;
  lock.unlock();
  const ssize_t n = stream_.Read(parts, count);
  const int error = n < 0 ? errno : 0;
  lock.lock();
  reading_ = false;
  paused_.notify_all();
  if (n == 0) {
    Lose(lock, notices, 0, "the peer has closed it");
  } else if (n < 0 && error != EAGAIN) {
    Lose(lock, notices, error, ConnectionErrorText(error));
  }
  if (n <= 0) return false;
  const auto got = static_cast<uint64_t>(n);
  in.read += std::min(got, now);
  header_read_ += got - std::min(got, now);
  if (in.active && in.read == in.bytes) Take(lock, notices);
  if (header_read_ == sizeof(Header) && failure_.empty()) {
    header_read_ = 0;
    if (!Place(lock, notices)) return false;
    if (in.bytes == 0) Take(lock, notices);
  }
  return got == now + header;  // else the socket has no more now
}

// Decides where the message of `header_` goes. Returns false if the
// connection has failed.
bool TcpConnection::Place(Lock& lock, Notices& notices) {
  const uint64_t bytes = header_.bytes;
  Incoming in{.active = true, .bytes = bytes};
  in.to = TakePosted(header_.slot);
  if (in.to.tag.listener == nullptr) {
    if (bytes > most_early_bytes_) {
      Fail(lock, notices, "it sends more than was expected");
      return false;
    }
    in.early = {
        header_.slot,
        std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]),
        bytes};
    if (in.early.data == nullptr) {
      Fail(lock, notices, "there is no memory for its data");
      return false;
    }
    early_bytes_ += bytes;
  } else if (in.to.bytes != bytes) {
    posted_.push_back(in.to);
    Fail(lock, notices, "it sends a message of another size than was expected");
    return false;
  }
  incoming_ = std::move(in);
  return true;
}

// The message is complete.
void TcpConnection::Take(Lock& lock, Notices& notices) {
  Incoming in = std::exchange(incoming_, {});
  if (in.to.tag.listener != nullptr) {
    return notices.Add(in.to.tag, "");
  }
  const Posted to = TakePosted(in.early.slot);
  if (to.tag.listener == nullptr) {
    early_.push_back(std::move(in.early));
    return;
  }
  // Its receive was posted while it arrived.
  early_bytes_ -= in.early.bytes;
  if (to.bytes != in.early.bytes) {
    posted_.push_back(to);
    return Fail(lock, notices, kOtherSize);
  }
  if (to.bytes > 0) std::memcpy(to.data, in.early.data.get(), to.bytes);
  notices.Add(to.tag, "");
}

}  // namespace maypole::worker
