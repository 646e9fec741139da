// TcpPair: one connection of TcpTransport; see tcp_transport.h.
//
// Thread contract: any thread. Lock order: a pair's mutex before a buffer's.
// The mutex is not held during system calls that move data: one thread writes
// at a time (`writing_`), others only append to its queue; the loop's thread
// reads (`reading_`). Who removes something waits until both have paused.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_
#define MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_

#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/system/fd.h"
#include "worker/backend/tcp_buffer.h"

namespace maypole::worker {

class TcpLoop;

class TcpPair : public gloo::transport::Pair {
 public:
  // `early_bytes`: see tcp_transport.h.
  TcpPair(TcpLoop* loop, uint64_t early_bytes)
      : loop_(loop), most_early_bytes_(early_bytes) {}
  ~TcpPair() override { close(); }

  void Adopt(Fd connection);

  void close() override;
  void send(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
            size_t offset, size_t bytes) override;
  void recv(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
            size_t offset, size_t bytes) override;

  // Called by the loop's thread.
  void OnReadable();
  void OnWritable();
  // Cancels what is posted for the buffer; afterwards its memory is not
  // accessed.
  void Forget(TcpBuffer* buffer);

  // Not supported, because GlooBackend does not need them: these throw.
  const gloo::transport::Address& address() const override;
  void connect(const std::vector<char>& bytes) override;
  void setSync(bool enable, bool busy_poll) override;
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(
      int slot, void* data, size_t bytes) override;
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(
      int slot, void* data, size_t bytes) override;

 private:
  struct Header {
    uint64_t slot = 0;
    uint64_t bytes = 0;
  };
  struct Outgoing {
    Header header;
    TcpBuffer* buffer = nullptr;
    const std::byte* data = nullptr;
    size_t written = 0;  // header included
  };
  struct Posted {
    uint64_t slot = 0;
    TcpBuffer* buffer = nullptr;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  // A message that has arrived before its receive was posted.
  struct Early {
    uint64_t slot = 0;
    std::unique_ptr<std::byte[]> data;
    uint64_t bytes = 0;
  };
  // The message whose bytes are being read; `to` or `early` is set.
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
    void Add(TcpBuffer* buffer, TcpBuffer::Kind kind,
             const std::string& failure);

   private:
    std::vector<std::pair<TransferTag, std::string>> all_;
  };
  using Lock = std::unique_lock<std::mutex>;

  // With `keep_open` the socket stays open, so that the peer does not consider
  // this node lost.
  void Fail(Lock& lock, Notices& notices, const std::string& why,
            bool keep_open = false);
  void AwaitPause(Lock& lock);
  void ThrowIfFailed() const;
  // Writes queued data, as far as the socket accepts it.
  void Write(Lock& lock, Notices& notices);
  void Want(bool read, bool write);
  // Returns false if there is nothing more to read now.
  bool Read();
  bool Place(Lock& lock, Notices& notices);
  void Take(Lock& lock, Notices& notices);
  // The receive posted first of a slot, which is no longer posted then; its
  // buffer is null if there is none.
  Posted TakePosted(uint64_t slot);

  TcpLoop* const loop_;
  const uint64_t most_early_bytes_;
  std::mutex mutex_;
  std::condition_variable paused_;
  Fd fd_;
  bool reading_ = false;
  bool writing_ = false;
  bool wants_read_ = true;  // false: enough has arrived early
  bool wants_write_ = false;
  std::string failure_;  // empty while the pair works or is not adopted yet
  std::deque<Outgoing> outgoing_;
  std::deque<Posted> posted_;  // in the order of the calls
  std::deque<Early> early_;    // in the order of arrival
  uint64_t early_bytes_ = 0;
  Incoming incoming_;
  Header header_;  // of the next message
  size_t header_read_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_
