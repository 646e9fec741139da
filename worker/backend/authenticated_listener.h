// AuthenticatedListener: the one port at which an executor takes the
// connections of its peers, while an epoch starts.
//
// Purpose: Gloo takes whoever connects first for the peer, and ends the process
// when it reads what it does not expect. So Gloo gets only connections on which
// both ends have proved that they belong to the job (handshake_proof.h).
// Strangers are hung up on, and nobody waits for them.
//
//   auto gate = AuthenticatedListener::Open({.host = "10.0.0.1", .self = 0,
//   .nodes = 2, ...}); gate->AddressFor(1);              // opaque; the
//   coordinator carries it gate->SetPeers({"", theirs});     // what the others
//   have given for us gate->Connection(1, 0, deadline)  // an Fd gate->Close();
//   // nobody listens any more
//
// Of two nodes the one with the higher index calls. Connections to the others
// are waited for; a thread of the gate's own lets them in as they come.
//
// Limits: kMaxPendingHandshakes connections that have not proved anything, each
// for kHandshakeTimeout at most; when there are more, the oldest is hung up on.
// A caller that was hung up on tries again.
//
// Thread contract: Open, AddressFor, Meet, Connection from one thread; Close
// from any, it ends waits.
#ifndef MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_
#define MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/handshake_proof.h"

namespace maypole::worker {

inline constexpr size_t kMaxPendingHandshakes = 128;
inline constexpr std::chrono::seconds kHandshakeTimeout(5);

struct AuthenticatedListenerOptions {
  std::string host;  // to listen on; the port is any free one
  uint32_t self = 0;
  uint32_t nodes = 2;
  uint32_t connections = 1;  // with each other node
  uint64_t epoch = 0;        // a number of the epoch, the same on all nodes
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
  // offers[i]: node i's AddressFor(self); the own place is not looked at. The
  // index of the first that is not one, or that has another number of
  // connections, and why.
  struct BadOffer {
    uint32_t node = 0;
    std::string why;
  };
  std::unique_ptr<BadOffer> SetPeers(const std::vector<std::string>& offers);

  // Blocking, both ends have proved themselves. The error does not name the
  // node.
  absl::StatusOr<Fd> Connection(uint32_t node, uint32_t connection,
                                Clock::time_point deadline);

  void Close();

 private:
  struct Peer {
    handshake::Secret ours = {};  // for the peer to know
    handshake::Secret key = {};
    std::string host;
    int port = 0;
  };
  // Somebody who has connected. It says Hello, then Proof.
  struct PendingHandshake {
    Fd socket;
    Clock::time_point since;
    bool answered = false;
    size_t read = 0;
    handshake::Hello hello;
    handshake::Secret challenge = {};
    handshake::Proof proof = {};
  };

  AuthenticatedListener(AuthenticatedListenerOptions options, Fd listener,
                        std::string host, int port);
  void AcceptHandshakes();
  void Accept();
  // False: hang up.
  bool Hear(PendingHandshake& pending);
  bool HearHello(PendingHandshake& pending);
  bool HearProof(PendingHandshake& pending);
  absl::StatusOr<Fd> Call(uint32_t node, uint32_t connection,
                          Clock::time_point deadline);
  absl::StatusOr<Fd> CallOnce(uint32_t node, uint32_t connection,
                              Clock::time_point deadline);
  absl::StatusOr<Fd> AwaitCall(uint32_t node, uint32_t connection,
                               Clock::time_point deadline);
  // False: the gate has been closed.
  bool Pause(std::chrono::milliseconds time);

  const AuthenticatedListenerOptions options_;
  const std::string host_;
  const int port_;
  std::vector<Peer> peers_;  // fixed before the thread starts
  Fd listener_;
  Fd wake_;
  std::list<PendingHandshake> pending_;  // oldest first; of the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int calling_ = -1;  // socket of the call that is under way
  std::map<std::pair<uint32_t, uint32_t>, Fd> authenticated_;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_AUTHENTICATED_LISTENER_H_
