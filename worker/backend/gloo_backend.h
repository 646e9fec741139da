// GlooBackend: a Backend over Gloo's pairs, two or more to each other node, and
// one connection to each for the executors' own messages.
//
// Connecting: there is no store. Each pair's address travels through the
// coordinator together with a secret, by which both ends prove to each other
// that they belong to the job (authenticated_listener.h). Other processes that
// reach the port do not get through to Gloo.
//
// Reducing: the chunk is divided into one segment per node that has a part in
// it. Each node sends segment i to the i-th node, reduces its own segment over
// all nodes in node order, applies the epilogue and sends the result to all
// others. This moves as many bytes as a ring (2 (n-1)/n of the chunk in each
// direction) in two steps instead of 2 (n-1), rounds half precision once, and
// gives the same bits everywhere, because only one node computes a segment. If
// the chunk scatters, its segments say which node needs what, and the second
// step is omitted.
//
// Numbers: sends and receives of two nodes are matched by the number of the
// chunk among those that concern both; each end counts them.
//
// A chunk in flight: Start posts all its receives and first sends to Gloo's
// buffers, and the transport's threads (tcp_transport.h) move the bytes. The
// reducer thread waits for the other nodes' contributions to the own segment,
// reduces them and sends the result. The finisher thread waits for the rest and
// calls the callback. Both handle chunks in order, so the link always has the
// next chunks to carry. A small chunk that is alone in flight is carried out
// within Start, which saves three thread wake-ups.
//
// Each connection carries data in one direction only, because it is locked
// while it is written to or read from.
//
// The result of segment i is received into the place of the chunk from which
// its contribution was sent. This is safe, because node i sends the result only
// after it has received the contribution.
//
// Failures: waits have no timeout, because a late node is not a dead one. A
// failed connection only fails what is posted on it; so a watcher thread waits
// on all connections for a message that never comes, and its failure ends all
// waits, as Abort() does, whether or not a chunk is in flight. A cut wire shows
// when sent data is not acknowledged, or keepalive probes are not answered
// (tcp_timeouts.h).
//
// Thread contract: as Backend's.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/blocking_queue.h"

namespace gloo::transport {
class UnboundBuffer;
}

namespace maypole::worker {

class AuthenticatedListener;
class GlooMesh;

struct GlooOptions {
  std::string host;    // address to listen on
  uint64_t nonce = 0;  // of job and epoch, the same on all nodes
  // "node n1 (host b)" by node index, for messages.
  std::vector<std::string> node_names;
  // A peer that cannot be reached within this fails Connect.
  std::chrono::milliseconds connect_timeout{20000};
  // A connection fails if the peer's kernel has answered nothing for this long;
  // 0: never.
  std::chrono::milliseconds answer_timeout{10000};
  // Connections in each direction to each other node, the same on all nodes.
  // Chunks use them in turn.
  uint32_t connections = 1;
  // A chunk of up to this size that is alone in flight is carried out within
  // Start.
  uint64_t eager_bytes = 32 * 1024;
};

inline constexpr uint32_t kMaxConnections = 3;

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(GlooOptions options);
  ~GlooBackend() override;

  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override;
  absl::Status Connect(const std::vector<std::string>& addresses) override;
  std::vector<Fd> TakeMessageConnections() override {
    return std::move(message_connections_);
  }
  void OnEnded(std::function<void(const absl::Status&)> on_ended) override;
  void Start(Work work) override;
  void Abort() override;
  absl::Status status() const override;
  uint64_t bytes_sent() const override { return sent_; }
  uint64_t bytes_received() const override { return received_; }

 private:
  // The number of a chunk for one peer.
  struct Numbered {
    uint32_t node = 0;
    uint64_t number = 0;
  };
  // A piece of the own segments.
  struct Piece {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t packed = 0;  // offset in each contribution
  };

  // One send or receive.
  struct Part {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    uint32_t node = 0;
    bool is_send = false;
  };

  // One chunk in flight.
  struct Flight {
    Work work;
    std::vector<Numbered> peers;  // ascending, without this node
    bool failed = false;
    std::vector<Piece> own;           // the pieces that this node reduces
    uint64_t own_bytes = 0;           // of all of `own`
    std::vector<std::byte> inbox;     // the peers' contributions, by peer
    std::vector<Part> contributions;  // receives into the inbox
    std::vector<Part> rest;
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  enum class Step : uint64_t { kScatter = 0, kGather = 1 };

  absl::Status ConnectPairs(const std::vector<std::string>& addresses);
  void StartThreads();
  std::string NodeName(uint32_t node) const;

  // How a backend ends.
  void Break(const std::string& text);
  void Watch();
  void NameTheLost(const std::string& text);

  // The steps of a chunk.
  void Number(Flight& flight);
  std::vector<Piece> PiecesOf(const Flight& flight, uint32_t node) const;
  void Post(Flight& flight);
  void PostReduction(Flight& flight);
  void PostExchange(Flight& flight);
  void Reduce(Flight& flight);
  void ReduceOwn(Flight& flight);
  void SendSums(Flight& flight);
  void Finish(Flight& flight);
  void ReduceAll();
  void FinishAll();

  GlooMesh& MeshFor(uint64_t number, uint32_t from, uint32_t to) const;
  // These throw exceptions that name the node.
  void Receive(Flight& flight, std::vector<Part>& parts, const Numbered& peer,
               Step step, std::byte* data, uint64_t bytes);
  void Send(Flight& flight, const Numbered& peer, Step step,
            const std::byte* data, uint64_t bytes);
  Part MakePart(GlooMesh& mesh, uint32_t node, bool is_send, uint64_t slot,
                std::byte* data, uint64_t bytes);
  // These return false if the backend is broken; then status() tells the cause.
  bool Wait(Part& part);
  bool WaitAll(std::vector<Part>& parts);

  std::vector<std::byte> TakeInbox(uint64_t bytes);
  void GiveInbox(std::vector<std::byte> inbox);

  const GlooOptions options_;
  uint32_t self_ = 0;
  uint32_t nodes_ = 1;
  std::function<void(const absl::Status&)> on_ended_;
  std::vector<Fd> message_connections_;  // by node; set by Connect
  std::vector<uint64_t> started_;  // chunks by peer; for the starting thread
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> received_{0};

  mutable std::mutex mutex_;  // guards what follows
  bool aborted_ = false;
  bool broken_ = false;
  std::string broken_text_;
  std::vector<Part*> waiting_;  // parts that a thread waits for now
  std::vector<std::shared_ptr<GlooMesh>> meshes_;    // set once, by Prepare
  std::unique_ptr<AuthenticatedListener> listener_;  // likewise
  std::vector<std::vector<std::byte>> inboxes_;      // for reuse

  Part watched_;
  BlockingQueue<Flight> to_reduce_;
  BlockingQueue<Flight> to_finish_;
  std::thread reducer_;
  std::thread finisher_;
  std::thread watcher_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_BACKEND_H_
