// TcpPair, TcpBuffer: the parts of TcpTransport; see tcp_transport.h.
//
// Thread contract: any thread. Locks: a pair's before a buffer's.
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

  // True: one more has ended. False: aborted. Throws if one has failed.
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override { Abort(&receives_); }
  void abortWaitSend() override { Abort(&sends_); }
  void send(int node, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(int node, uint64_t slot, size_t offset, size_t bytes) override;
  void recv(std::vector<int> nodes, uint64_t slot, size_t offset,
            size_t bytes) override;

  // By pairs.
  void Posted();
  void Sent() { Ended(&sends_, ""); }
  void Received() { Ended(&receives_, ""); }
  void SendFailed(const std::string& why) { Ended(&sends_, why); }
  void ReceiveFailed(const std::string& why) { Ended(&receives_, why); }

 private:
  // What has ended and was not waited for.
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

  // By the transport's thread.
  void OnReadable();
  void OnWritable();
  // Nobody touches the buffer's memory any more.
  void Forget(TcpBuffer* buffer);

  // What GlooBackend has no use for; they throw.
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
  // A message that has come before its receive.
  struct Early {
    std::unique_ptr<std::byte[]> data;
    uint64_t bytes = 0;
  };
  // The message that is being read.
  struct Incoming {
    Header header;
    size_t header_read = 0;
    bool placed = false;  // the header is whole, and `to` says where
    Posted to;            // or
    Early early;
    uint64_t read = 0;
  };

  // keep_open: the peer shall not take us for the one that was lost.
  void Fail(const std::string& why, bool keep_open = false);
  void ThrowIfFailed() const;
  void Write();  // what is queued, as far as the socket takes it
  void WantWrite(bool wanted);
  // False: there is nothing more now.
  bool Read();
  // True: n bytes came. False: none now, or it has failed.
  bool Got(ssize_t n);
  bool Place();
  void Take();

  const uint32_t node_;
  std::mutex mutex_;
  Fd fd_;
  int epoll_ = -1;
  bool wants_write_ = false;
  std::string failure_;  // empty: it works, or was not adopted yet
  std::deque<Outgoing> outgoing_;
  std::unordered_map<uint64_t, std::deque<Posted>> posted_;  // by slot
  std::unordered_map<uint64_t, std::deque<Early>> early_;    // by slot
  uint64_t early_bytes_ = 0;
  Incoming incoming_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_PAIR_H_
