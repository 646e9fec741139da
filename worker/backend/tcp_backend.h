// TcpBackend: a Backend over TCP connections, two or more to each other node,
// and one to each for the executors' own messages. With nodes that have UCX,
// too, chunks can travel over that (ucx/ucx_fabric.h).
//
// Connecting: a secret travels through the coordinator with each node's
// address. By it both ends prove to each other that they belong to the job
// (authenticated_listener.h); other processes that reach the port do not get
// further. From it they have the keys with which they encrypt, if both want to
// (peer_socket.h).
//
// A chunk in flight (tcp_flight.h) goes through the stages of its plan
// (exchange_plan.h) without a thread that waits for it: Start posts its
// receives and first sends, and the loop's thread (tcp_loop.h), which reads
// what arrives, also reduces it and posts what follows. So all chunks in flight
// move at once, to and from all nodes.
//
// Levels: Connect measures what the links cost, and chooses the levels of a
// reduction by that (exchange_model.h).
//
// Numbers: sends and receives of two nodes are matched by the number of the
// chunk among those that concern both; each end counts them.
//
// Each connection carries data in one direction only.
//
// UCX: where both nodes use it and nothing is encrypted, they tell each other
// their UCX addresses over the connection for messages, and all chunks' data
// goes over UCX. The TCP connections stay: they tell at once of a peer that has
// ended.
//
// Failures: waits have no timeout, because a late node is not a dead one. A
// connection that fails ends all chunks, as Abort() does, whether or not one is
// in flight. A cut wire shows when sent data is not acknowledged, or keepalive
// probes are not answered (tcp_options.h).
//
// Thread contract: as Backend's.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_BACKEND_H_
#define MAYPOLE_WORKER_BACKEND_TCP_BACKEND_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/exchange_model.h"
#include "worker/backend/link_probe.h"

namespace maypole::worker {

class PeerConnector;
class PeerLink;
class TcpConnection;
class TcpLoop;
class UcxFabric;

// With how many other nodes a node's connections are encrypted, and how.
struct EncryptedNodes {
  uint32_t encrypted = 0;
  uint32_t clear = 0;
  std::string suite;  // of TLS; empty if encrypted is 0
};

// What carries the data of chunks.
enum class DataPath {
  kTcp,
  kUcx,   // all nodes have to
  kAuto,  // UCX with nodes that have a working adapter for RDMA, as this one
          // has
};

// Over what a node exchanges chunks with the others.
struct DataPaths {
  uint32_t ucx = 0;  // nodes
  uint32_t tcp = 0;
  std::string why;  // TCP and not UCX, or empty
};

struct TcpBackendOptions {
  // Addresses to listen on, at most kMaxConnections. With several, connections
  // are spread over them.
  std::vector<std::string> hosts;
  // Finds one if there is none: called by Prepare, which may ask the name
  // service. To return early when stopped() becomes true; after Abort() it is.
  std::function<absl::StatusOr<std::string>(
      const std::function<bool()>& stopped)>
      find_host = {};
  uint64_t nonce = 0;  // of job and epoch, the same on all nodes
  // "node n1 (host b)" by node index, for messages.
  std::vector<std::string> node_names;
  // A peer that cannot be reached, or does not measure, within this fails
  // Connect.
  std::chrono::milliseconds connect_timeout{20000};
  // A connection fails if the peer's kernel has answered nothing for this long;
  // 0: never.
  std::chrono::milliseconds answer_timeout{10000};
  // A node that has received this much of another one for which it has not
  // started the chunks reads no more until it has. At least what a node may
  // be ahead by: the chunks of its ring.
  uint64_t early_bytes = uint64_t{1} << 30;
  // See SetTcpCongestion(); checked by Connect.
  std::string congestion = "auto";
  // Connections in each direction to each other node, the same on all nodes,
  // and threads that serve them. Each gets as many bytes. At least one for each
  // address, and a multiple of their number.
  uint32_t connections = 1;
  // See authenticated_listener.h. Encrypted are all connections of two nodes or
  // none.
  EncryptionMode encryption = EncryptionMode::kOff;
  // Called by Connect, when all nodes are connected.
  std::function<void(const EncryptedNodes&)> on_encrypted = {};
  DataPath data_path = DataPath::kTcp;
  // Called by Connect likewise.
  std::function<void(const DataPaths&)> on_data_paths = {};
  // A connection to the node has lost its network, and uses this address of
  // this node; or, `back`, it uses its own network again. Called by Connect or
  // by a thread of the backend.
  std::function<void(uint32_t node, const std::string& address, bool back)>
      on_moved = {};
  // How many levels a reduction has at most (exchange_model.h); of the nodes'
  // numbers the least. 0: the others know no levels, and there is one.
  uint32_t max_levels = 0;
  // What the links cost, so that Connect does not measure; for tests.
  std::optional<LinkCosts> costs = {};
  // Called by Connect, if it has measured them.
  std::function<void(const AgreedLinks&)> on_measured = {};
};

inline constexpr uint32_t kMaxConnections = 4;

class TcpBackend : public Backend {
 public:
  explicit TcpBackend(TcpBackendOptions options);
  ~TcpBackend() override;

  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override;
  absl::Status Connect(const std::vector<std::string>& addresses) override;
  std::vector<PeerStream> TakeMessageConnections() override {
    return std::move(message_connections_);
  }
  void OnEnded(std::function<void(const absl::Status&)> on_ended) override;
  void Start(Work work) override;
  void Abort() override;
  absl::Status status() const override;
  uint64_t bytes_sent() const override { return sent_; }
  uint64_t bytes_received() const override { return received_; }

 private:
  class Flight;  // tcp_flight.h

  absl::Status ConnectNodes(const std::vector<std::string>& addresses);
  // Null, and no_ucx_, if UCX is not to be used.
  absl::StatusOr<std::unique_ptr<UcxFabric>> OpenUcxFabric();
  // Exchanges addresses over these connections, to each node one.
  absl::Status ConnectUcx(const std::vector<PeerStream>& connections);
  absl::Status MeasureCosts();

  // How a chunk travels to another node and back.
  struct Lane {
    uint64_t number = 0;  // of the chunk among those that concern both nodes
    uint32_t connection = 0;  // which of them, in each direction
  };
  PeerLink* LinkTo(bool is_send, uint32_t node, const Lane& lane) const;
  // A connection to `node` has failed.
  void OnFailed(uint32_t node, const std::string& why);
  void OnFlightEnded(Flight* flight);

  void Break(const std::string& text);
  std::vector<Level> LevelsFor(const Work& work);
  // The lanes of the next chunk of `nodes`, to each of them. A node's
  // connection is the one with the least bytes so far, which both ends count
  // alike.
  std::vector<Lane> NextLanes(const std::vector<uint32_t>& nodes,
                              const ExchangePlan& plan);
  std::vector<std::byte> TakeInbox(uint64_t bytes);
  void Report(Flight& flight);

  TcpBackendOptions options_;
  uint32_t self_ = 0;
  uint32_t nodes_ = 1;
  std::function<void(const absl::Status&)> on_ended_;
  std::vector<PeerStream> message_connections_;  // by node; set by Connect
  std::string no_ucx_;                           // why; set by Prepare
  std::vector<uint64_t> started_;  // chunks by peer; for the starting thread
  // Bytes of what was started, by node and connection; likewise.
  std::vector<std::vector<uint64_t>> loads_;
  std::optional<ExchangeModel> model_;  // likewise; set by Connect
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> received_{0};

  mutable std::mutex mutex_;  // guards what follows
  bool aborted_ = false;
  std::atomic<bool> broken_{false};  // written under the mutex
  std::string broken_text_;
  // Set once, by Prepare: 2 * options_.connections to each other node, by
  // connection and node. The even ones carry data to higher nodes.
  std::vector<std::vector<std::unique_ptr<TcpConnection>>> connections_;
  std::vector<std::unique_ptr<TcpLoop>> loops_;  // likewise
  std::unique_ptr<PeerConnector> connector_;     // likewise
  std::unique_ptr<UcxFabric> ucx_;               // likewise; or null

  // A chunk in flight, in the order of the starts.
  struct InFlight {
    std::shared_ptr<Flight> flight;
    bool ended = false;
  };
  std::mutex flights_mutex_;  // guards what follows
  std::condition_variable all_reported_;
  std::deque<InFlight> flights_;
  bool reporting_ = false;  // one thread calls the callback
  std::vector<std::vector<std::byte>> inboxes_;  // for reuse
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_BACKEND_H_
