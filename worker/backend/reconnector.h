// Reconnector: gets streams whose socket is lost another one, over a network
// that is left.
//
// Purpose: recovery of the connections of two nodes that share several
// networks. Of two nodes, the one with the higher index calls, as when they
// first met; it tries the networks in turn. The other one waits for the call.
//
//   Reconnector reconnector({.self = 1, .call = ..., .open = ...});
//   PeerStream stream(std::move(socket), reconnector.SupplyFor(0, 2));
//   ... the stream loses its socket, and gets another one ...
//
// Limits: a stream without a socket for `patience` has failed. A single call
// lasts at most kCallTime.
//
// Thread contract: any thread. A thread of its own makes the calls, and calls
// on_moved and on_failed.
#ifndef MAYPOLE_WORKER_BACKEND_RECONNECTOR_H_
#define MAYPOLE_WORKER_BACKEND_RECONNECTOR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/authenticated_listener.h"
#include "worker/backend/peer_stream.h"
#include "worker/backend/tls_handshakes.h"

namespace maypole::worker {

inline constexpr std::chrono::seconds kCallTime(2);

// A connection of this node: to which node, and which of them.
struct ConnectionId {
  uint32_t node = 0;
  uint32_t number = 0;
  auto operator<=>(const ConnectionId&) const = default;
};

struct ReconnectorOptions {
  using Clock = std::chrono::steady_clock;

  uint32_t self = 0;
  std::chrono::milliseconds patience{5000};
  // Calls the node once. `attempt`: 0, 1, ... since the stream was lost.
  std::function<absl::StatusOr<Authenticated>(
      const ConnectionId& id, uint32_t attempt, Clock::time_point deadline)>
      call;
  // Makes a socket of a connection; if it is to be encrypted, its handshake is
  // still to be made.
  std::function<absl::StatusOr<PeerSocket>(const ConnectionId& id,
                                           Authenticated met)>
      open;
  // A stream has another socket, from this address of this node.
  std::function<void(const ConnectionId& id, const std::string& address)>
      on_moved;
  std::function<void(const ConnectionId& id, const std::string& why)> on_failed;
};

class Reconnector {
 public:
  explicit Reconnector(ReconnectorOptions options);
  ~Reconnector();
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;
  // Ends the thread. A call that lasts has to be ended before.
  void Stop();

  std::shared_ptr<SocketSupply> SupplyFor(const ConnectionId& id);
  // The peer has called, because it has lost its end.
  void OnCall(const ConnectionId& id, Authenticated met);

 private:
  using Clock = ReconnectorOptions::Clock;
  // A stream without a socket.
  struct Lost {
    Clock::time_point since;
    uint32_t attempts = 0;
    std::string why;
  };

  void Main();
  // These are called by the thread, without the mutex.
  // Returns false if the connection is of no use.
  bool Open(const ConnectionId& id, Authenticated met);
  void StepHandshakes();
  void Give(const ConnectionId& id, PeerSocket socket);
  // Calls, gives up, or waits. Returns when to look again.
  Clock::time_point Serve(const ConnectionId& id, const Lost& lost);

  const ReconnectorOptions options_;
  // For the thread.
  TlsHandshakes handshakes_;
  uint64_t opened_ = 0;
  struct Handshake {
    ConnectionId id;
    PeerSocket socket;
    Clock::time_point since;
  };
  std::map<uint64_t, Handshake> open_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stop_ = false;
  bool has_news_ = false;
  std::map<ConnectionId, std::shared_ptr<SocketSupply>> supplies_;
  std::map<ConnectionId, Lost> lost_;
  std::vector<std::pair<ConnectionId, Authenticated>> calls_;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_RECONNECTOR_H_
