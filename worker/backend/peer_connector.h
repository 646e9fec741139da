// PeerConnector: the connections of a node to the other nodes of a membership
// epoch.
//
// Purpose: meets each other node (authenticated_listener.h), sets what the
// sockets need (tcp_options.h), encrypts them if both nodes want to, and, with
// several networks, replaces those whose network is lost (reconnector.h).
//
//   auto connector = PeerConnector::Open(
//       {.hosts = {"10.0.1.7", "10.0.2.7"}, .nodes = 2, .connections = 3});
//   (*connector)->AddressFor(1);    // opaque; the coordinator passes it
//   auto streams = (*connector)->Connect(their_addresses);
//   (*streams)[2][1].Write(...);    // connection 2 to node 1
//   (*connector)->Close();
//
// Thread contract: Open, AddressFor and Connect from one thread; the others
// from any thread. Close makes a waiting Connect return soon. The callbacks
// come from a thread of its own, not after Stop.
#ifndef MAYPOLE_WORKER_BACKEND_PEER_CONNECTOR_H_
#define MAYPOLE_WORKER_BACKEND_PEER_CONNECTOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/authenticated_listener.h"
#include "worker/backend/peer_stream.h"
#include "worker/backend/reconnector.h"

namespace maypole::worker {

struct PeerConnectorOptions {
  // See TcpBackendOptions.
  std::vector<std::string> hosts;
  uint32_t self = 0;
  uint32_t nodes = 2;
  uint32_t connections = 1;  // to each other node
  uint64_t nonce = 0;
  EncryptionMode encryption = EncryptionMode::kOff;
  bool ucx = false;
  std::vector<std::string> node_names;
  std::chrono::milliseconds connect_timeout{20000};
  std::chrono::milliseconds answer_timeout{10000};
  std::string congestion = "auto";
  // A connection has lost its network, now or before it was made, and uses this
  // address of this node; or, `back`, it uses its own network again. Also
  // called by Connect.
  std::function<void(const ConnectionId& id, const std::string& address,
                     bool back)>
      on_moved = {};
  // A connection has lost its socket and got no other one.
  std::function<void(const ConnectionId& id, const std::string& why)>
      on_failed = {};
};

class PeerConnector {
 public:
  // By connection and node; none to this node.
  using Streams = std::vector<std::vector<PeerStream>>;

  static absl::StatusOr<std::unique_ptr<PeerConnector>> Open(
      PeerConnectorOptions options);
  ~PeerConnector() { Stop(); }

  std::string AddressFor(uint32_t node) const {
    return listener_->AddressFor(node);
  }
  // addresses[i] is node i's for this node. With one network the port is closed
  // afterwards.
  absl::StatusOr<Streams> Connect(const std::vector<std::string>& addresses);

  // After Connect().
  bool Encrypts(uint32_t node) const { return listener_->Encrypts(node); }
  bool HasUcx(uint32_t node) const { return listener_->HasUcx(node); }
  const std::string& suite() const { return suite_; }  // of TLS, or empty

  // Says of a failure with which node it was.
  absl::Status CannotConnect(uint32_t node, const absl::Status& why,
                             const char* advice = "") const;
  std::string NodeName(uint32_t node) const;

  void Close();
  // Closes, and waits for the end of the callbacks.
  void Stop();

 private:
  using Sockets = std::vector<std::vector<PeerSocket>>;

  PeerConnector(PeerConnectorOptions options,
                std::unique_ptr<AuthenticatedListener> listener);
  absl::StatusOr<PeerSocket> SocketOf(uint32_t node, Authenticated met) const;
  bool IsOwn(const ConnectionId& id, const std::string& address) const;
  void OnMoved(const ConnectionId& id, const std::string& address) const;
  absl::Status Meet(Sockets* sockets);
  absl::Status Encrypt(Sockets* sockets);
  bool lasting() const { return options_.hosts.size() > 1; }

  const PeerConnectorOptions options_;
  std::string suite_;
  std::atomic<bool> closed_{false};
  // Null with one network. Before the listener, whose thread uses it.
  std::unique_ptr<Reconnector> reconnector_;
  const std::unique_ptr<AuthenticatedListener> listener_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_PEER_CONNECTOR_H_
