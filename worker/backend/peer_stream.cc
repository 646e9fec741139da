#include "worker/backend/peer_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maypole::worker {
namespace {

constexpr size_t kTrimBytes = size_t{1} << 20;
constexpr size_t kDrainBytes = size_t{256} << 10;
// Of an encrypted socket: what PeerSocket may hold unsent, and the record of
// which a part is acknowledged.
constexpr uint64_t kSealedBytes = size_t{256} << 10;

bool IsLostNetwork(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == ENETDOWN || error == ECONNRESET;
}

}  // namespace

// --- SocketSupply ------------------------------------------------------------

void SocketSupply::OnSocket(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

// Under the lock, so that nothing is called after Close().
void SocketSupply::ReportLost(int error) {
  std::lock_guard lock(mutex_);
  if (on_lost_) on_lost_(error);
}

void SocketSupply::Close() {
  std::lock_guard lock(mutex_);
  on_lost_ = {};
}

bool SocketSupply::HasSocket() {
  std::lock_guard lock(mutex_);
  return socket_.has_value();
}

std::optional<PeerSocket> SocketSupply::Take() {
  std::lock_guard lock(mutex_);
  return std::exchange(socket_, std::nullopt);
}

void SocketSupply::Give(PeerSocket socket) {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    socket_ = std::move(socket);
    move_ = false;
    wake = wake_;
  }
  if (wake) wake();
}

void SocketSupply::RequestMove() {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    move_ = true;
    wake = wake_;
  }
  if (wake) wake();
}

bool SocketSupply::TakeMove() {
  std::lock_guard lock(mutex_);
  return std::exchange(move_, false);
}

// --- WrittenBytes ------------------------------------------------------------

void WrittenBytes::Append(const iovec* parts, int count, size_t bytes) {
  end_ += bytes;
  for (int i = 0; i < count && bytes > 0; ++i) {
    const auto* const at = static_cast<const std::byte*>(parts[i].iov_base);
    const size_t n = std::min(bytes, parts[i].iov_len);
    bytes_.insert(bytes_.end(), at, at + n);
    bytes -= n;
  }
}

void WrittenBytes::Trim(uint64_t position) {
  if (position <= begin()) return;
  head_ += static_cast<size_t>(std::min(position, end_) - begin());
  if (head_ < bytes_.size() / 2) return;
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(head_));
  head_ = 0;
}

iovec WrittenBytes::From(uint64_t position) {
  const auto bytes = static_cast<size_t>(end_ - position);
  return {bytes_.data() + bytes_.size() - bytes, bytes};
}

// --- PeerStream --------------------------------------------------------------

PeerStream::PeerStream(PeerSocket socket, std::shared_ptr<SocketSupply> supply)
    : socket_(std::move(socket)) {
  if (supply == nullptr) return;
  lasting_ = std::make_unique<Lasting>();
  lasting_->supply = std::move(supply);
  lasting_->trim_at = kTrimBytes;
}

PeerStream& PeerStream::operator=(PeerStream&& other) noexcept {
  Reset();
  socket_ = std::move(other.socket_);
  lasting_ = std::move(other.lasting_);
  return *this;
}

void PeerStream::Reset() {
  OnSocket({});
  socket_.Reset();
  lasting_.reset();
}

void PeerStream::OnSocket(std::function<void()> wake) {
  if (lasting_ != nullptr) lasting_->supply->OnSocket(std::move(wake));
}

// --- Reading -----------------------------------------------------------------

ssize_t PeerStream::Read(const iovec* parts, int count) {
  if (lasting_ == nullptr) return socket_.Read(parts, count);
  if (lasting_->drained_read < lasting_->drained.size()) {
    return ReadDrained(parts, count);
  }
  if (lasting_->suspended) {
    errno = EAGAIN;
    return -1;
  }
  if (lasting_->awaits_number && !ReadNumber()) return errno == 0 ? 0 : -1;
  if (!lasting_->drained.empty()) return ReadDrained(parts, count);
  const ssize_t n = socket_.Read(parts, count);
  if (n > 0) lasting_->read += static_cast<uint64_t>(n);
  NoteLoss(n);
  return n;
}

void PeerStream::NoteLoss(ssize_t result) {
  if (result < 0 && IsLostNetwork(errno)) lasting_->lost = true;
}

ssize_t PeerStream::ReadDrained(const iovec* parts, int count) {
  Lasting& l = *lasting_;
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    const size_t n =
        std::min(parts[i].iov_len, l.drained.size() - l.drained_read);
    std::memcpy(parts[i].iov_base, l.drained.data() + l.drained_read, n);
    l.drained_read += n;
    total += n;
  }
  if (l.drained_read == l.drained.size()) {
    l.drained = {};
    l.drained_read = 0;
  }
  return static_cast<ssize_t>(total);
}

bool PeerStream::ReadNumber() {
  Lasting& l = *lasting_;
  while (l.number_read < sizeof(l.number)) {
    const iovec rest{reinterpret_cast<std::byte*>(&l.number) + l.number_read,
                     sizeof(l.number) - l.number_read};
    const ssize_t n = socket_.Read(&rest, 1);
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    l.number_read += static_cast<size_t>(n);
  }
  if (l.number < l.written.begin() || l.number > l.written.end()) {
    errno = EPROTO;
    return false;
  }
  l.given = l.number;
  if (std::exchange(l.moves, false)) {
    Drain(&l.previous);
    l.previous.Reset();
    SendNumber();
  }
  l.awaits_number = false;  // from now on the writing thread may use `given`
  return true;
}

// --- Writing -----------------------------------------------------------------

ssize_t PeerStream::Write(const iovec* parts, int count) {
  if (lasting_ == nullptr) return socket_.Write(parts, count);
  Lasting& l = *lasting_;
  if (!can_write()) {
    errno = EAGAIN;
    return -1;
  }
  while (l.given < l.written.end()) {
    const iovec rest = l.written.From(l.given);
    const ssize_t n = socket_.Write(&rest, 1);
    NoteLoss(n);
    if (n < 0) return n;
    l.given += static_cast<uint64_t>(n);
  }
  const ssize_t n = socket_.Write(parts, count);
  NoteLoss(n);
  if (n <= 0) return n;
  l.written.Append(parts, count, static_cast<size_t>(n));
  l.given = l.written.end();
  if (l.written.size() >= l.trim_at) TrimWritten();
  return n;
}

void PeerStream::TrimWritten() {
  Lasting& l = *lasting_;
  int unacknowledged = 0;
  if (ioctl(socket_.fd(), SIOCOUTQ, &unacknowledged) != 0) return;
  const uint64_t needed =
      static_cast<uint64_t>(unacknowledged) + (encrypted() ? kSealedBytes : 0);
  if (needed < l.given) l.written.Trim(l.given - needed);
  l.trim_at = l.written.size() + std::max(kTrimBytes, l.written.size());
}

bool PeerStream::has_unsent() const {
  return socket_.has_unsent() ||
         (lasting_ != nullptr &&
          (!can_write() || lasting_->given < lasting_->written.end()));
}

bool PeerStream::can_write() const {
  return lasting_ == nullptr ||
         (!lasting_->suspended && !lasting_->awaits_number);
}

// --- Sockets -----------------------------------------------------------------

bool PeerStream::Suspend(int error) {
  if (lasting_ == nullptr) return false;
  Lasting& l = *lasting_;
  if (l.suspended) return true;
  // A socket that ends before the peer has sent its number was not the one with
  // which the peer continues.
  if (!IsLostNetwork(error) && !l.lost && !l.awaits_number) return false;
  l.suspended = true;
  l.supply->ReportLost(error);
  return true;
}

bool PeerStream::Move() {
  if (lasting_ == nullptr || !lasting_->supply->TakeMove()) return false;
  Lasting& l = *lasting_;
  if (l.suspended || l.lost || l.awaits_number) return false;
  l.suspended = true;
  l.moves = true;
  l.supply->ReportLost(0);
  return true;
}

int PeerStream::TakeError() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool PeerStream::CanResume() const {
  return lasting_ != nullptr && lasting_->supply->HasSocket();
}

void PeerStream::Resume() {
  std::optional<PeerSocket> next = lasting_->supply->Take();
  if (!next) return;
  Lasting& l = *lasting_;
  if (!l.moves) {
    DrainSocket();
  } else if (!l.previous.valid()) {  // else socket_ has been in vain
    l.previous = std::move(socket_);
  }
  socket_ = *std::move(next);
  l.suspended = false;
  l.lost = false;
  l.number_read = 0;
  l.awaits_number = true;
  l.trim_at = kTrimBytes;
  if (!l.moves) SendNumber();
}

void PeerStream::SendNumber() {
  // The first bytes on the socket, so it has room; if it is broken, Read()
  // says so.
  const iovec number{&lasting_->read, sizeof(lasting_->read)};
  [[maybe_unused]] const ssize_t n = socket_.Write(&number, 1);
}

// Takes what the socket still has, unless it is a resumed one without a number.
void PeerStream::DrainSocket() {
  if (lasting_->awaits_number && !ReadNumber()) return;
  Drain(&socket_);
}

void PeerStream::Drain(PeerSocket* socket) {
  Lasting& l = *lasting_;
  l.drained.erase(l.drained.begin(),
                  l.drained.begin() + static_cast<ptrdiff_t>(l.drained_read));
  l.drained_read = 0;
  for (;;) {
    const size_t size = l.drained.size();
    l.drained.resize(size + kDrainBytes);
    const iovec room{l.drained.data() + size, kDrainBytes};
    const ssize_t n = socket->Read(&room, 1);
    const auto got = static_cast<size_t>(std::max<ssize_t>(n, 0));
    l.drained.resize(size + got);
    l.read += got;
    if (n <= 0) return;
  }
}

}  // namespace maypole::worker
