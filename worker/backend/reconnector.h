// Reconnector: gets streams whose socket is lost another one, over a network
// that is left, and brings them back when their own network is back.
//
// Purpose: recovery of the connections of two nodes that share several
// networks. Of two nodes, the one with the higher index calls, as when they
// first met; it tries the networks in turn. The other one waits for the call.
// Of a stream that is not on its own network, the node that calls tries that
// network after return_pause, and then again and again; when it answers, the
// stream is asked to move. A network that is lost once more is left alone for
// twice as long, up to 32 times.
//
//   Reconnector reconnector({.self = 1, .call = ..., .open = ...});
//   PeerStream stream(std::move(socket), reconnector.SupplyFor({0, 2}, own));
//   ... the stream loses its socket, and gets another one ...
//
// Limits: a stream without a socket for `patience` has failed. A single call
// lasts at most kCallTime, a trial of a network kTrialTime.
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
inline constexpr std::chrono::milliseconds kTrialTime(500);

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
  std::chrono::milliseconds return_pause{30000};
  // Calls the node once. `attempt`: 1, 2, ... since the stream was lost; 0:
  // over its own network.
  std::function<absl::StatusOr<Authenticated>(
      const ConnectionId& id, uint32_t attempt, Clock::time_point deadline)>
      call;
  // Whether the connection's own network reaches the node.
  std::function<bool(const ConnectionId& id, Clock::time_point deadline)> reach;
  // Makes a socket of a connection; if it is to be encrypted, its handshake is
  // still to be made.
  std::function<absl::StatusOr<PeerSocket>(const ConnectionId& id,
                                           Authenticated met)>
      open;
  // Whether this address of this node is that of the connection's own network.
  std::function<bool(const ConnectionId& id, const std::string& address)>
      is_own;
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

  // `on_own`: the stream's first socket is on its own network.
  std::shared_ptr<SocketSupply> SupplyFor(const ConnectionId& id,
                                          bool on_own = true);
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

  // A stream that is not on its own network.
  struct Away {
    Clock::time_point next_trial;
    uint32_t pauses = 1;  // of return_pause, before each trial
    bool away = true;
  };

  void Main();
  // These are called by the thread, without the mutex.
  // Returns false if the connection is of no use.
  bool Open(const ConnectionId& id, Authenticated met);
  void StepHandshakes();
  void Give(const ConnectionId& id, PeerSocket socket);
  // Calls, gives up, or waits. Returns when to look again.
  Clock::time_point Serve(const ConnectionId& id, const Lost& lost);
  // Tries the networks that are due. Returns when to look again.
  Clock::time_point TryToReturn();
  bool calls(const ConnectionId& id) const { return id.node < options_.self; }
  void NoteNetwork(const ConnectionId& id, bool own);  // with the mutex

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
  std::map<ConnectionId, Away> away_;  // and those that were
  std::vector<std::pair<ConnectionId, Authenticated>> calls_;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_RECONNECTOR_H_
