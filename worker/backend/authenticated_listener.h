// AuthenticatedListener: the port at which an executor accepts its peers'
// connections while an epoch starts.
//
// Purpose: any process can reach the port, and the job's data goes through the
// connections. So only those are handed out on which both ends have proved that
// they belong to the job (handshake_proof.h). Other connections are closed and
// delay no peer.
//
//   auto listener = AuthenticatedListener::Open(
//       {.hosts = {"10.0.0.1"}, .self = 0, .nodes = 2});  //
//       StatusOr<unique_ptr>
//   (*listener)->AddressFor(1);            // opaque; the coordinator passes it
//   (*listener)->SetPeers({"", theirs});   // the peers' addresses for this
//   node
//   (*listener)->Connection(1, 0, deadline);  // StatusOr<Authenticated>
//   (*listener)->Close();                  // stops listening
//
// Encryption: two nodes encrypt if neither mode is off. A node that requires it
// refuses one whose mode is off, and is refused by it. Offers that were changed
// on their way are noticed when the nodes meet (handshake_proof.h). The caller
// of Connection() encrypts, with the key that it gets.
//
// With several addresses, pairs of connections (0 and 1, 2 and 3, ...) go to
// and from them in turn: each end uses its own ones in its own order.
//
// Of two nodes, the one with the higher index connects; the other one waits for
// it. A thread of the listener handles incoming connections.
//
// Limits: at most kMaxPendingHandshakes connections that have not proved
// themselves, each for at most kHandshakeTimeout; beyond that the oldest is
// closed. A node whose connection was closed tries again.
//
// Thread contract: Open, AddressFor, SetPeers, Connection and then CallOnce
// from one thread at a time; SetOnCall and Close from any thread. Close ends
// waits.
#ifndef MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_
#define MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/handshake_io.h"
#include "worker/backend/handshake_proof.h"

namespace maypole::worker {

inline constexpr size_t kMaxPendingHandshakes = 128;
inline constexpr std::chrono::seconds kHandshakeTimeout(5);

struct AuthenticatedListenerOptions {
  // To listen on, at any free port.
  std::vector<std::string> hosts;
  uint32_t self = 0;
  uint32_t nodes = 2;
  uint32_t connections = 1;  // with each other node
  uint64_t epoch = 0;        // identifies the epoch, the same on all nodes
  EncryptionMode encryption = EncryptionMode::kOff;
  bool ucx = false;  // this node can be reached over UCX, too
};

// A connection on which both ends have proved themselves.
struct Authenticated {
  Fd socket;                       // blocking
  handshake::Secret tls_key = {};  // for this connection only
};

class AuthenticatedListener {
 public:
  using Clock = std::chrono::steady_clock;

  static absl::StatusOr<std::unique_ptr<AuthenticatedListener>> Open(
      AuthenticatedListenerOptions options);
  ~AuthenticatedListener();
  AuthenticatedListener(const AuthenticatedListener&) = delete;
  AuthenticatedListener& operator=(const AuthenticatedListener&) = delete;

  std::string AddressFor(uint32_t node) const;
  // Which offer is wrong, and why.
  struct BadOffer {
    uint32_t node = 0;
    std::string why;
  };
  // offers[i] is node i's AddressFor(self); the own entry is ignored. Returns
  // the first offer that is invalid, has another number of connections or an
  // encryption that does not fit to this node's, or null.
  std::unique_ptr<BadOffer> SetPeers(const std::vector<std::string>& offers);

  // The own address of a connection, unless its network is lost.
  const std::string& HostOf(uint32_t connection) const;

  // After SetPeers(): whether connections with that node are to be encrypted.
  bool Encrypts(uint32_t node) const;

  // Likewise: whether that node can be reached over UCX.
  bool HasUcx(uint32_t node) const { return peers_[node].ucx; }

  // Waits for a connection. The error does not name the node. With several
  // addresses, a call that fails over one is repeated over the next.
  absl::StatusOr<Authenticated> Connection(uint32_t node, uint32_t connection,
                                           Clock::time_point deadline);

  // Incoming connections that nobody has taken, and all later ones, go to
  // `on_call`, which the listener's thread calls.
  using OnCall = std::function<void(uint32_t node, uint32_t connection,
                                    Authenticated met)>;
  void SetOnCall(OnCall on_call);
  // Tries once to connect to a node with a lower index, over the n-th network
  // from the connection's own. kResourceExhausted: the peer has closed the
  // connection. Not while Connection() waits.
  absl::StatusOr<Authenticated> CallOnce(uint32_t node, uint32_t connection,
                                         uint32_t network,
                                         Clock::time_point deadline);

  // Whether that port of a node accepts a connection over the connection's own
  // network; closes it at once. Thread contract: as CallOnce.
  bool Reaches(uint32_t node, uint32_t connection, Clock::time_point deadline);

  void Close();

 private:
  struct Peer {
    handshake::Secret ours = {};  // made here for this peer
    handshake::Secret key = {};
    EncryptionMode encryption = EncryptionMode::kOff;
    bool ucx = false;
    std::vector<handshake::Endpoint> endpoints;
  };
  // An incoming connection. The other end sends Hello, then a proof.
  struct PendingHandshake {
    Fd socket;
    Clock::time_point since;
    bool answered = false;
    bool same_offers = true;  // as the caller and this node have got them
    size_t read = 0;
    handshake::Hello hello;
    handshake::Secret challenge = {};
    handshake::Proof proof = {};
  };

  AuthenticatedListener(AuthenticatedListenerOptions options,
                        std::vector<Fd> listeners,
                        std::vector<handshake::Endpoint> own);
  void AcceptHandshakes();
  void Accept(int listener);
  // These return false if the connection must be closed.
  bool Hear(PendingHandshake& pending);
  bool HearHello(PendingHandshake& pending);
  bool HearProof(PendingHandshake& pending);
  absl::StatusOr<Authenticated> Call(uint32_t node, uint32_t connection,
                                     Clock::time_point deadline);
  absl::StatusOr<Authenticated> AwaitCall(uint32_t node, uint32_t connection,
                                          Clock::time_point deadline);
  // Returns false if the listener has been closed.
  bool Pause(std::chrono::milliseconds time);

  const AuthenticatedListenerOptions options_;
  const std::vector<handshake::Endpoint> own_;
  std::vector<Peer> peers_;    // fixed before the thread starts
  std::vector<Fd> listeners_;  // of own_
  Fd wake_;
  std::list<PendingHandshake> pending_;  // oldest first; used by thread_ only

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int calling_ = -1;  // the socket that is connecting, or -1
  std::map<std::pair<uint32_t, uint32_t>, Authenticated> authenticated_;
  OnCall on_call_;                     // null: to authenticated_
  std::set<uint32_t> changed_offers_;  // nodes that have got other offers
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_
