// TcpBuffer: a buffer of TcpTransport (tcp_transport.h).
//
// Purpose: Gloo's unbound buffer, whose owner waits for what it has posted; or,
// with a listener, one whose owner is told when it has ended, so that no thread
// has to wait.
//
// Thread contract: any thread. A buffer without a listener may be destroyed
// while something is posted. One with a listener must live until the listener
// has been told of the end of everything posted; Cancel() hastens that.
// The listener is called without a lock, by the loop's thread or the one that
// posts, cancels or closes; it may destroy the buffer.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_BUFFER_H_
#define MAYPOLE_WORKER_BACKEND_TCP_BUFFER_H_

#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace maypole::worker {

class TcpPair;

class TransferListener {
 public:
  virtual ~TransferListener() = default;
  // A send or receive has ended. `failure`: why it failed, or empty.
  virtual void OnEnded(uint64_t tag, const std::string& failure) = 0;
};

// Whom to tell of an end, and what the buffer is called there.
struct TransferTag {
  TransferListener* listener = nullptr;
  uint64_t tag = 0;
};

class TcpBuffer : public gloo::transport::UnboundBuffer {
 public:
  // `pairs`: by node; must outlive the buffer.
  TcpBuffer(const std::vector<TcpPair*>& pairs, void* data, size_t bytes,
            TransferTag tag = {})
      : UnboundBuffer(data, bytes), pairs_(pairs), tag_(tag) {}
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

  // Ends what is posted for `node`, as a failure.
  void Cancel(uint32_t node);

  const TransferTag& tag() const { return tag_; }

  // Called by pairs, under their mutex; the last only without a listener.
  void Posted();
  enum class Kind { kSend, kReceive };
  void Ended(Kind kind, const std::string& failure);

 private:
  // The state of one direction: `ended` counts what no wait has taken yet.
  struct Way {
    int ended = 0;
    bool aborted = false;
    std::string failure;  // empty: none
  };

  bool Wait(Way* way, std::chrono::milliseconds timeout);
  void Abort(Way* way);
  size_t Bytes(size_t offset, size_t bytes) const;

  const std::vector<TcpPair*>& pairs_;  // by node
  const TransferTag tag_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int posted_ = 0;  // sends and receives that have not ended
  Way sends_;
  Way receives_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_BUFFER_H_
