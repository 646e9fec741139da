// TcpPair, TcpBuffer: one connection and one buffer of TcpTransport; see
// tcp_transport.h.
//
// Thread contract: any thread. Lock order: a pair's mutex before a buffer's.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_
#define MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_

#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace maypole::worker {

class TcpPair;

class TcpBuffer : public gloo::transport::UnboundBuffer {
 public:
  TcpBuffer(std::vector<TcpPair*> pairs, void* data, size_t bytes)
      : UnboundBuffer(data, bytes), pairs_(std::move(pairs)) {}
  ~TcpBuffer() override;

  // Waits until one more receive (or send) has ended and returns true. Returns
  // false if the wait was aborted; throws if a receive (or send) has failed.
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override { Abort(&receives_); }
  void abortWaitSend() override { Abort(&sends_); }
  void send(int node, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(int node, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(std::vector<int> nodes, uint64_t slot, size_t offset,
            size_t bytes) override;

  // Called by pairs.
  void Posted();
  void Sent() { Ended(&sends_, ""); }
  void Received() { Ended(&receives_, ""); }
  void SendFailed(const std::string& why) { Ended(&sends_, why); }
  void ReceiveFailed(const std::string& why) { Ended(&receives_, why); }

 private:
  // The state of one direction: `ended` counts what no wait has taken yet.
  struct Way {
    int ended = 0;
    bool aborted = false;
    std::string failure;  // empty: none
  };

  bool Wait(Way* way, std::chrono::milliseconds timeout);
  void Abort(Way* way);
  void Ended(Way* way, const std::string& failure);
  size_t Bytes(size_t offset, size_t bytes) const;

  const std::vector<TcpPair*> pairs_;  // by node
  std::mutex mutex_;
  std::condition_variable changed_;
  int posted_ = 0;  // sends and receives that have not ended
  Way sends_;
  Way receives_;
};

class TcpPair : public gloo::transport::Pair {
 public:
  explicit TcpPair(uint32_t node) : node_(node) {}
  ~TcpPair() override { close(); }

  void Adopt(Fd connection, int epoll);

  void close() override;
  void send(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
            size_t offset, size_t bytes) override;
  void recv(gloo::transport::UnboundBuffer* buffer, uint64_t slot,
            size_t offset, size_t bytes) override;

  // Called by the transport's thread.
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
    TcpBuffer* buffer = nullptr;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  // A message that has arrived before its receive was posted.
  struct Early {
    std::unique_ptr<std::byte[]> data;
    uint64_t bytes = 0;
  };
  // The message that is being read.
  struct Incoming {
    Header header;
    size_t header_read = 0;
    bool placed = false;  // the header is complete, and `to` or `early` is set
    Posted to;
    Early early;
    uint64_t read = 0;
  };

  // With `keep_open` the socket stays open, so that the peer does not consider
  // this node lost.
  void Fail(const std::string& why, bool keep_open = false);
  void ThrowIfFailed() const;
  void Write();  // queued data, as far as the socket accepts it
  void WantWrite(bool wanted);
  // Returns false if there is nothing more to read now.
  bool Read();
  // Judges the result of a read. Returns true if data has arrived, false if
  // there is none now or the pair has failed.
  bool Got(ssize_t n);
  bool Place();
  void Take();

  const uint32_t node_;
  std::mutex mutex_;
  Fd fd_;
  int epoll_ = -1;
  bool wants_write_ = false;
  std::string failure_;  // empty while the pair works or is not adopted yet
  std::deque<Outgoing> outgoing_;
  std::unordered_map<uint64_t, std::deque<Posted>> posted_;  // by slot
  std::unordered_map<uint64_t, std::deque<Early>> early_;    // by slot
  uint64_t early_bytes_ = 0;
  Incoming incoming_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_
