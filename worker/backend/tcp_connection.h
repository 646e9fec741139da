// TcpConnection: messages between this node and another one, over one socket.
//
// Purpose: sends and receives, matched by slot, in order within a slot. The
// caller has connected and authenticated the socket (authenticated_listener.h),
// and made its TLS handshake if it is encrypted (peer_socket.h).
// No thread waits for a transfer: its listener is told when it has ended.
//
//   TcpConnection to_peer(&loop, early_bytes, on_failed);
//   to_peer.Adopt(PeerSocket(std::move(fd)));   // or a stream that outlives it
//   to_peer.Receive(slot, data, bytes, {.listener = this, .tag = 1});
//   // -> this->OnEnded(1, "")
//
// On the wire, a message is its slot and size (16 bytes, host byte order), then
// its bytes. A send is written at once as far as the socket accepts it, and
// needs no answer. A message that arrives before its receive is posted is kept
// here. Keeping it avoids deadlocks: a message that is needed may follow one
// whose receive is posted only later. Once `early_bytes` are kept, nothing more
// is read until some of their receives are posted; so `early_bytes` must be at
// least what may lie before a needed message. A single message of more bytes
// that no receive is posted for is an error.
//
// A stream that has lost its socket (peer_stream.h) is suspended: what is
// posted waits until the stream has another one.
//
// Failures: if the connection ends, breaks or delivers unexpected data, all
// that is posted on it fails, and what is posted later fails at once. This is
// reported once, whether or not anything is posted.
//
// Thread contract: any thread. Listeners and `on_failed` are called without a
// lock, by the loop's thread or the one that posts, cancels or closes. The
// mutex is not held during system calls that move data: one thread writes at a
// time (`writing_`), others only append to its queue; the loop's thread reads
// (`reading_`). Who removes something waits until both have paused.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_CONNECTION_H_
#define MAYPOLE_WORKER_BACKEND_TCP_CONNECTION_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/peer_link.h"
#include "worker/backend/peer_stream.h"

namespace maypole::worker {

class TcpLoop;

class TcpConnection : public PeerLink {
 public:
  using OnFailed = std::function<void(const std::string& why)>;

  TcpConnection(TcpLoop* loop, uint64_t early_bytes, OnFailed on_failed);
  // Closes. If the socket was adopted, the loop must have ended before.
  ~TcpConnection() override;
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  // Call it once, before anything is posted. Closes the socket if this
  // connection has been closed.
  void Adopt(PeerStream stream);
  void Send(uint64_t slot, const std::byte* data, uint64_t bytes,
            TransferTag tag) override;
  void Receive(uint64_t slot, std::byte* data, uint64_t bytes,
               TransferTag tag) override;
  // If a message was transferred in part, the connection fails here, but stays
  // open, so that the peer does not consider this node lost.
  void Cancel(const TransferListener* listener) override;
  // Fails everything.
  void Close();

  // Called by the loop's thread.
  void OnReadable();
  void OnWritable();
  // After TcpLoop::Again().
  void OnAgain();

 private:
  struct Header {
    uint64_t slot = 0;
    uint64_t bytes = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* data = nullptr;
    TransferTag tag;
    // Header included. A send ends when the kernel has all of it.
    size_t written = 0;
  };
  struct Posted {
    uint64_t slot = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    TransferTag tag;
  };
  // A message that has arrived before its receive was posted.
  struct Early {
    uint64_t slot = 0;
    std::unique_ptr<std::byte[]> data;
    uint64_t bytes = 0;
  };
  // The message whose bytes are being read, into `to` if its receive is posted,
  // else into `early`.
  struct Incoming {
    bool active = false;
    uint64_t bytes = 0;
    uint64_t read = 0;
    Posted to;
    Early early;
  };

  // Tells listeners when it is destroyed. Declare it before the lock, so that
  // they are told without it.
  class Notices {
   public:
    ~Notices();
    void Add(TransferTag tag, const std::string& failure) {
      ended_.emplace_back(tag, failure);
    }
    void AddFailure(const OnFailed* on_failed, const std::string& why) {
      on_failed_ = on_failed;
      why_ = why;
    }

   private:
    const OnFailed* on_failed_ = nullptr;  // null: the connection works
    std::string why_;
    std::vector<std::pair<TransferTag, std::string>> ended_;
  };
  using Lock = std::unique_lock<std::mutex>;

  // With `keep_open` the socket stays open.
  void Fail(Lock& lock, Notices& notices, const std::string& why,
            bool keep_open = false);
  void AwaitPause(Lock& lock);
  // If the stream may get another socket, waits for it; else fails.
  void Lose(Lock& lock, Notices& notices, int error, const std::string& why);
  // The stream has another socket.
  void OnSocket();
  // Writes queued data, as far as the socket accepts it.
  void Write(Lock& lock, Notices& notices);
  void Want(bool read, bool write);
  // There may be data to read of which the kernel does not tell.
  void ReadAgain();
  // Returns false if there is nothing more to read now.
  bool Read();
  bool Place(Lock& lock, Notices& notices);
  void Take(Lock& lock, Notices& notices);
  // The receive posted first of a slot, which is no longer posted then; its
  // listener is null if there is none.
  Posted TakePosted(uint64_t slot);

  TcpLoop* const loop_;
  const uint64_t most_early_bytes_;
  const OnFailed on_failed_;
  std::mutex mutex_;
  std::condition_variable paused_;
  PeerStream stream_;
  bool reading_ = false;
  bool writing_ = false;
  bool suspended_ = false;  // nothing can be written
  bool wants_read_ = true;  // false: enough has arrived early
  bool wants_write_ = false;
  std::string failure_;  // empty while it works or has no socket yet
  std::deque<Outgoing> outgoing_;
  std::deque<Posted> posted_;  // in the order of the calls
  std::deque<Early> early_;    // in the order of arrival
  uint64_t early_bytes_ = 0;
  Incoming incoming_;
  Header header_;  // of the next message
  size_t header_read_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_CONNECTION_H_
