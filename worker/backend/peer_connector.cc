#include "worker/backend/peer_connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/handshake_io.h"
#include "worker/backend/tcp_options.h"
#include "worker/backend/tls_handshakes.h"

namespace maypole::worker {
namespace {

// How soon a handshake notices Close() and its deadline.
constexpr int kPollMs = 20;

// How long a connection may be without a socket. Its two ends notice up to some
// seconds apart that their network is lost.
constexpr std::chrono::milliseconds kLeastPatience(5000);

}  // namespace

absl::StatusOr<std::unique_ptr<PeerConnector>> PeerConnector::Open(
    PeerConnectorOptions options) {
  absl::StatusOr<std::unique_ptr<AuthenticatedListener>> listener =
      AuthenticatedListener::Open({.hosts = options.hosts,
                                   .self = options.self,
                                   .nodes = options.nodes,
                                   .connections = options.connections,
                                   .epoch = options.nonce,
                                   .encryption = options.encryption,
                                   .ucx = options.ucx});
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<PeerConnector>(
      new PeerConnector(std::move(options), *std::move(listener)));
}

PeerConnector::PeerConnector(PeerConnectorOptions options,
                             std::unique_ptr<AuthenticatedListener> listener)
    : options_(std::move(options)), listener_(std::move(listener)) {
  if (!lasting()) return;
  reconnector_ = std::make_unique<Reconnector>(ReconnectorOptions{
      .self = options_.self,
      .patience = std::max(kLeastPatience, options_.answer_timeout / 2),
      .return_pause = 3 * options_.answer_timeout,
      .call =
          [this](const ConnectionId& id, uint32_t attempt, auto deadline) {
            return listener_->CallOnce(id.node, id.number, attempt, deadline);
          },
      .reach =
          [this](const ConnectionId& id, auto deadline) {
            return listener_->Reaches(id.node, id.number, deadline);
          },
      .open =
          [this](const ConnectionId& id, Authenticated met) {
            return SocketOf(id.node, std::move(met));
          },
      .is_own = [this](
                    const ConnectionId& id,
                    const std::string& address) { return IsOwn(id, address); },
      .on_moved = [this](const ConnectionId& id,
                         const std::string& address) { OnMoved(id, address); },
      .on_failed = options_.on_failed});
}

bool PeerConnector::IsOwn(const ConnectionId& id,
                          const std::string& address) const {
  return address == listener_->HostOf(id.number);
}

void PeerConnector::OnMoved(const ConnectionId& id,
                            const std::string& address) const {
  if (options_.on_moved) options_.on_moved(id, address, IsOwn(id, address));
}

void PeerConnector::Stop() {
  Close();
  if (reconnector_ != nullptr) reconnector_->Stop();
}

void PeerConnector::Close() {
  closed_ = true;
  listener_->Close();
}

std::string PeerConnector::NodeName(uint32_t node) const {
  return node < options_.node_names.size() ? options_.node_names[node]
                                           : absl::StrCat("node ", node);
}

absl::Status PeerConnector::CannotConnect(uint32_t node,
                                          const absl::Status& why,
                                          const char* advice) const {
  return absl::Status(why.code(),
                      absl::StrCat("cannot connect to ", NodeName(node), ": ",
                                   std::string(why.message()), advice));
}

absl::StatusOr<PeerConnector::Streams> PeerConnector::Connect(
    const std::vector<std::string>& addresses) {
  if (const auto bad = listener_->SetPeers(addresses)) {
    return CannotConnect(bad->node, absl::InvalidArgumentError(bad->why));
  }
  Sockets sockets(options_.connections);
  for (auto& to_nodes : sockets) to_nodes.resize(options_.nodes);
  if (absl::Status s = Meet(&sockets); !s.ok()) return s;
  if (reconnector_ == nullptr) {
    listener_->Close();  // no further connections are expected
  } else {
    listener_->SetOnCall(
        [this](uint32_t node, uint32_t connection, Authenticated met) {
          reconnector_->OnCall({node, connection}, std::move(met));
        });
  }
  if (absl::Status s = Encrypt(&sockets); !s.ok()) return s;
  Streams streams(sockets.size());
  for (uint32_t c = 0; c < sockets.size(); ++c) {
    for (uint32_t i = 0; i < options_.nodes; ++i) {
      PeerSocket& socket = sockets[c][i];
      std::shared_ptr<SocketSupply> supply;
      if (reconnector_ != nullptr && i != options_.self) {
        const ConnectionId id{i, c};
        supply = reconnector_->SupplyFor(
            id, IsOwn(id, handshake::LocalEndpoint(socket.fd()).host));
      }
      streams[c].emplace_back(std::move(socket), std::move(supply));
    }
  }
  return streams;
}

absl::Status PeerConnector::Meet(Sockets* sockets) {
  const auto deadline =
      AuthenticatedListener::Clock::now() + options_.connect_timeout;
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    for (uint32_t c = 0; i != options_.self && c < sockets->size(); ++c) {
      absl::StatusOr<Authenticated> met = listener_->Connection(i, c, deadline);
      if (!met.ok()) {
        return CannotConnect(
            i, met.status(),
            "; check that --network is an address other nodes can reach");
      }
      absl::StatusOr<PeerSocket> socket = SocketOf(i, *std::move(met));
      if (!socket.ok()) return socket.status();
      const std::string address = handshake::LocalEndpoint(socket->fd()).host;
      if (!IsOwn({i, c}, address)) OnMoved({i, c}, address);
      (*sockets)[c][i] = *std::move(socket);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PeerSocket> PeerConnector::SocketOf(uint32_t node,
                                                   Authenticated met) const {
  const int fd = met.socket.get();
  absl::Status set = SetTcpTimeouts(fd, options_.answer_timeout);
  set.Update(SetTcpCongestion(fd, options_.congestion));
  if (!set.ok()) return set;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!listener_->Encrypts(node)) return PeerSocket(std::move(met.socket));
  absl::StatusOr<PeerSocket> encrypted = PeerSocket::Encrypted(
      std::move(met.socket), met.tls_key, {.calls = node < options_.self});
  if (!encrypted.ok()) return CannotConnect(node, encrypted.status());
  return encrypted;
}

absl::Status PeerConnector::Encrypt(Sockets* sockets) {
  TlsHandshakes handshakes;
  for (auto& to_nodes : *sockets) {
    for (uint32_t i = 0; i < options_.nodes; ++i) {
      if (to_nodes[i].encrypted()) handshakes.Add(i, &to_nodes[i]);
    }
  }
  const auto deadline =
      AuthenticatedListener::Clock::now() + options_.connect_timeout;
  while (!handshakes.empty()) {
    for (const auto& [node, status] : handshakes.Step(kPollMs)) {
      if (!status.ok()) {
        return CannotConnect(static_cast<uint32_t>(node), status);
      }
    }
    if (closed_) return absl::AbortedError("stopped");
    if (handshakes.empty()) break;
    if (AuthenticatedListener::Clock::now() > deadline) {
      return CannotConnect(static_cast<uint32_t>(handshakes.first()),
                           absl::UnavailableError(absl::StrCat(
                               "it has not finished the TLS handshake within ",
                               options_.connect_timeout.count(),
                               " ms; is its executor stopped?")));
    }
  }
  for (const auto& to_nodes : *sockets) {
    for (const PeerSocket& socket : to_nodes) {
      if (socket.encrypted()) suite_ = socket.Suite();
    }
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
