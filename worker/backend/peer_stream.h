// PeerStream: a stream of bytes to another node, which can outlive its socket.
//
// Purpose: where two nodes share several networks, losing one of them must not
// end a job. A stream with a SocketSupply keeps a copy of what it has written
// until the peer's kernel has acknowledged it. If its socket fails because the
// network is gone, it asks for another one. Both ends then exchange how many
// bytes they have received, and each sends again what the other one lacks. So
// the users of a stream lose and repeat nothing; they only wait.
//
//   PeerStream plain(std::move(socket));   // fails with its socket
//   PeerStream lasting(std::move(socket), supply);
//   ssize_t n = lasting.Read(parts, 2);    // as PeerSocket's
//   if (n <= 0 && lasting.Suspend(n < 0 ? errno : 0)) {
//     // Stop watching fd(). After the supply's wake-up:
//     if (lasting.CanResume()) lasting.Resume();   // and watch fd() again
//   }
//
// Which errors: those of a network that is gone (ETIMEDOUT, EHOSTUNREACH,
// ENETUNREACH, ENETDOWN), and ECONNRESET: a kernel whose keepalive probes were
// not answered resets the connection, and if only its incoming packets are
// lost, this end learns of it so. (If the peer has died instead, nobody
// answers the next call.) A peer that has closed the connection has ended, as
// without a supply.
//
// A stream also leaves a socket that works, when its supply asks for that
// (Move()), because its own network is back.
//
// On the wire, a resumed stream begins with the number of bytes that its sender
// has received of the stream (8 bytes, host byte order). Of two ends, the one
// that asks for a connection does so only after its own socket has failed, or
// after Move(), so it writes nothing to the old one any more. The other end
// first takes what the old socket still holds. After Move(), the other end may
// write to the old socket until it sends its number; so the end that moves
// waits for that number, takes what the old socket still holds, and only then
// sends its own one.
//
// Invariants: what the peer's kernel has acknowledged can be read by the peer,
// because only the network is gone. So the copies of all other bytes suffice.
// They are at most what the kernel accepts unacknowledged, and 1 MiB or as much
// again.
//
// Thread contract: as PeerSocket's: one thread reads while another one writes.
// Suspend() and Resume() need that neither does. SocketSupply: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_PEER_STREAM_H_
#define MAYPOLE_WORKER_BACKEND_PEER_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "worker/backend/peer_socket.h"

namespace maypole::worker {

// Where a stream gets its next socket from (reconnector.h).
class SocketSupply {
 public:
  // `on_lost` is called when the stream has lost its socket, with the errno.
  explicit SocketSupply(std::function<void(int error)> on_lost)
      : on_lost_(std::move(on_lost)) {}

  // For the stream. `wake` is called, without a lock, when there is a socket or
  // the stream is asked to move.
  void OnSocket(std::function<void()> wake);
  // 0: it has left a socket that works.
  void ReportLost(int error);
  // Whether the stream is asked to move; forgets it.
  bool TakeMove();
  bool HasSocket();
  std::optional<PeerSocket> Take();
  // For the supplier. The latest socket counts.
  void Give(PeerSocket socket);
  void RequestMove();
  // `on_lost` is not called any more.
  void Close();

 private:
  std::mutex mutex_;  // guards what follows
  std::function<void(int error)> on_lost_;
  std::function<void()> wake_;
  std::optional<PeerSocket> socket_;
  bool move_ = false;
};

// The end of what was written to a stream, by position in it.
class WrittenBytes {
 public:
  uint64_t begin() const { return end_ - size(); }
  uint64_t end() const { return end_; }
  size_t size() const { return bytes_.size() - head_; }
  void Append(const iovec* parts, int count, size_t bytes);
  // Forgets what lies before `position`.
  void Trim(uint64_t position);
  // From `position` to the end, which must be in range.
  iovec From(uint64_t position);

 private:
  std::vector<std::byte> bytes_;
  size_t head_ = 0;  // before it, what is forgotten
  uint64_t end_ = 0;
};

class PeerStream {
 public:
  PeerStream() = default;  // none
  // NOLINTNEXTLINE(google-explicit-constructor): a stream of one socket.
  PeerStream(PeerSocket socket) : socket_(std::move(socket)) {}
  PeerStream(PeerSocket socket, std::shared_ptr<SocketSupply> supply);
  PeerStream(PeerStream&&) noexcept = default;
  PeerStream& operator=(PeerStream&& other) noexcept;
  ~PeerStream() { Reset(); }

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.fd(); }
  bool encrypted() const { return socket_.encrypted(); }
  // Whether it can outlive its socket.
  bool lasting() const { return lasting_ != nullptr; }
  // Whether Read() may have something of which the kernel does not tell.
  bool buffers() const { return encrypted() || lasting(); }
  // The supply wakes no one any more.
  void Reset();
  // See SocketSupply; nothing if the stream has none.
  void OnSocket(std::function<void()> wake);

  // As PeerSocket's. EAGAIN while the stream has no socket.
  ssize_t Read(const iovec* parts, int count);
  ssize_t Write(const iovec* parts, int count);
  bool has_unsent() const;
  // False from the loss of a socket until Read() has taken the peer's number:
  // until then writing is in vain.
  bool can_write() const;

  // Copies of what was written that it keeps.
  size_t kept_bytes() const { return lasting() ? lasting_->written.size() : 0; }

  // After Read() or Write() has failed with `error` (0: the peer has closed the
  // socket). If another socket may follow, asks for it and returns true.
  bool Suspend(int error);
  // If the supply asks for it and the socket works: leaves the socket, as if it
  // were lost, asks for another one and returns true.
  bool Move();
  // Takes the socket's error without reading: errno, or 0.
  int TakeError();
  // Whether there is another socket. Also without a loss here: the peer has
  // noticed it first.
  bool CanResume() const;
  // Continues with that socket.
  void Resume();

 private:
  // What a stream with a supply has besides its socket.
  struct Lasting {
    std::shared_ptr<SocketSupply> supply;
    bool suspended = false;  // no socket
    // Since Move(), until all of `previous` has been read.
    bool moves = false;
    PeerSocket previous;
    // A call has said that the network is gone. The kernel says it only once.
    std::atomic<bool> lost{false};
    // The peer's number is still to come.
    std::atomic<bool> awaits_number{false};
    // For the reading thread.
    uint64_t read = 0;  // bytes of the stream, with those in `drained`
    std::vector<std::byte> drained;  // from the last socket
    size_t drained_read = 0;
    uint64_t number = 0;  // the peer's
    size_t number_read = 0;
    // For the writing thread.
    WrittenBytes written;
    uint64_t given = 0;  // how much of it the socket has
    size_t trim_at = 0;  // of which size it is trimmed
  };

  void NoteLoss(ssize_t result);
  void DrainSocket();
  void Drain(PeerSocket* socket);
  void SendNumber();
  ssize_t ReadDrained(const iovec* parts, int count);
  // Returns false, with errno, if Read() has to end.
  bool ReadNumber();
  void TrimWritten();

  PeerSocket socket_;
  std::unique_ptr<Lasting> lasting_;  // null without a supply
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_PEER_STREAM_H_
