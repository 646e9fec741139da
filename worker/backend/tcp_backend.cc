#include "worker/backend/tcp_backend.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/backend/handshake_io.h"
#include "worker/backend/peer_connector.h"
#include "worker/backend/tcp_connection.h"
#include "worker/backend/tcp_flight.h"
#include "worker/backend/tcp_loop.h"
#include "worker/backend/ucx/ucx_fabric.h"

namespace maypole::worker {
namespace {

// How soon a handshake notices Abort() and its deadline.
constexpr int kPollMs = 20;

constexpr uint32_t kMaxUcxAddressBytes = 16 * 1024;

}  // namespace

TcpBackend::TcpBackend(TcpBackendOptions options)
    : options_(std::move(options)) {}

TcpBackend::~TcpBackend() {
  Abort();
  {
    std::unique_lock lock(flights_mutex_);
    all_reported_.wait(lock,
                       [this] { return flights_.empty() && !reporting_; });
  }
  ucx_.reset();
  if (connector_ != nullptr) connector_->Stop();
  loops_.clear();  // before the connections
}

absl::StatusOr<std::vector<std::string>> TcpBackend::Prepare(
    uint32_t node_index, uint32_t nodes) {
  self_ = node_index;
  nodes_ = nodes;
  started_.assign(nodes, 0);
  const auto cannot_listen = [this](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for other nodes on address '",
        absl::StrJoin(options_.hosts, ","), "' (set --network): ", why));
  };
  if (options_.hosts.empty() && options_.find_host) {
    absl::StatusOr<std::string> found =
        options_.find_host([this] { return broken_.load(); });
    if (!found.ok())
      return cannot_listen(std::string(found.status().message()));
    options_.hosts = {*std::move(found)};
  }
  const auto hosts =
      std::max<uint32_t>(1, static_cast<uint32_t>(options_.hosts.size()));
  options_.connections = (options_.connections + hosts - 1) / hosts * hosts;
  loads_.assign(nodes, std::vector<uint64_t>(options_.connections));
  absl::StatusOr<std::unique_ptr<UcxFabric>> ucx = OpenUcxFabric();
  if (!ucx.ok()) return ucx.status();
  absl::StatusOr<std::unique_ptr<PeerConnector>> connector =
      PeerConnector::Open(
          {.hosts = options_.hosts,
           .self = self_,
           .nodes = nodes_,
           .connections = 2 * options_.connections + 1,
           .nonce = options_.nonce,
           .encryption = options_.encryption,
           .ucx = *ucx != nullptr,
           .node_names = options_.node_names,
           .connect_timeout = options_.connect_timeout,
           .answer_timeout = options_.answer_timeout,
           .congestion = options_.congestion,
           .on_moved =
               [this](const ConnectionId& id, const std::string& address,
                      bool back) {
                 if (!options_.on_moved) return;
                 options_.on_moved(id.node, address, back);
               },
           .on_failed =
               [this](const ConnectionId& id, const std::string& why) {
                 OnFailed(id.node, why);
               }});
  if (!connector.ok()) {
    return cannot_listen(std::string(connector.status().message()));
  }
  try {
    std::vector<std::unique_ptr<TcpLoop>> loops;
    decltype(connections_) connections(2 * options_.connections);
    for (size_t c = 0; c < connections.size(); ++c) {
      // The connections of both directions share a loop.
      if (c % 2 == 0) loops.push_back(std::make_unique<TcpLoop>());
      connections[c].resize(nodes_);
      for (uint32_t i = 0; i < nodes_; ++i) {
        if (i == self_) continue;
        connections[c][i] = std::make_unique<TcpConnection>(
            loops.back().get(), options_.early_bytes,
            [this, i](const std::string& why) { OnFailed(i, why); });
      }
    }
    std::vector<std::string> addresses(nodes_);
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i != self_) addresses[i] = (*connector)->AddressFor(i);
    }
    std::lock_guard lock(mutex_);
    if (aborted_) return absl::AbortedError("the network backend was stopped");
    loops_ = std::move(loops);
    connections_ = std::move(connections);
    connector_ = *std::move(connector);
    ucx_ = *std::move(ucx);
    return addresses;
  } catch (const std::exception& e) {
    return cannot_listen(e.what());
  }
}

absl::StatusOr<std::unique_ptr<UcxFabric>> TcpBackend::OpenUcxFabric() {
  const bool required = options_.data_path == DataPath::kUcx;
  if (nodes_ < 2) return nullptr;
  if (options_.data_path == DataPath::kTcp) {
    no_ucx_ = "--network_backend is tcp";
    return nullptr;
  }
  if (!required && !HasRdmaDevice()) {
    no_ucx_ = "this node has no InfiniBand or RoCE adapter with an active port";
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<UcxFabric>> ucx = UcxFabric::Open(
      {.self = self_,
       .nodes = nodes_,
       .on_failed = [this](uint32_t node, const std::string& why) {
         OnFailed(node, why);
       }});
  if (ucx.ok()) return ucx;
  no_ucx_ = std::string(ucx.status().message());
  if (!required) return nullptr;
  return absl::FailedPreconditionError(absl::StrCat(
      "this node cannot use UCX, which its --network_backend=ucx requires: ",
      no_ucx_));
}

absl::Status TcpBackend::Connect(const std::vector<std::string>& addresses) {
  if (connections_.empty() || addresses.size() != nodes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected addresses of ", nodes_, " nodes, got ", addresses.size()));
  }
  const absl::Status connected = ConnectNodes(addresses);
  if (!connected.ok()) {
    Break(std::string(connected.message()));
    const absl::Status why = status();
    // Return `connected` for its code; status() would say kUnavailable.
    return absl::IsAborted(why) ? why : connected;
  }
  if (options_.max_levels > 0 && options_.costs) {
    model_.emplace(*options_.costs, options_.max_levels);
  } else if (options_.max_levels > 0) {
    return MeasureCosts();
  }
  return status();
}

absl::Status TcpBackend::MeasureCosts() {
  std::function<void(const absl::Status&)> on_ended = on_ended_;
  ProbeOptions probe{self_, nodes_, options_.max_levels,
                     options_.connect_timeout};
  probe.on_late = [this](std::optional<uint32_t> node) {
    Break(absl::StrCat(
        node ? connector_->NodeName(*node) : "another node",
        " has not taken part in measuring the links between the nodes within ",
        options_.connect_timeout.count(), " ms; is its executor stopped?"));
  };
  const absl::StatusOr<AgreedLinks> links = MeasureLinks(this, probe);
  OnEnded(std::move(on_ended));
  if (!links.ok()) return links.status();
  if (options_.on_measured) options_.on_measured(*links);
  model_.emplace(links->costs, links->max_levels);
  sent_ = 0;  // the measurement's chunks are nobody's payload
  received_ = 0;
  return absl::OkStatus();
}

absl::Status TcpBackend::ConnectNodes(
    const std::vector<std::string>& addresses) {
  absl::StatusOr<PeerConnector::Streams> streams =
      connector_->Connect(addresses);
  if (!streams.ok()) return streams.status();
  EncryptedNodes nodes{.suite = connector_->suite()};
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    ++(connector_->Encrypts(i) ? nodes.encrypted : nodes.clear);
  }
  if (options_.on_encrypted) options_.on_encrypted(nodes);
  if (absl::Status s = ConnectUcx(streams->back()); !s.ok()) return s;
  message_connections_ = std::move(streams->back());
  for (size_t c = 0; c < connections_.size(); ++c) {
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i != self_) connections_[c][i]->Adopt(std::move((*streams)[c][i]));
    }
  }
  return absl::OkStatus();
}

absl::Status TcpBackend::ConnectUcx(
    const std::vector<PeerStream>& connections) {
  const auto uses_ucx = [this](uint32_t i) {
    return i != self_ && ucx_ != nullptr && connector_->HasUcx(i) &&
           !connector_->Encrypts(i);
  };
  DataPaths paths{.why = no_ucx_};
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    ++(uses_ucx(i) ? paths.ucx : paths.tcp);
    if (uses_ucx(i) || ucx_ == nullptr) continue;
    paths.why = absl::StrCat(connector_->NodeName(i),
                             connector_->Encrypts(i)
                                 ? " and this node encrypt, which UCX cannot"
                                 : " does not use UCX");
    if (options_.data_path != DataPath::kUcx) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        paths.why,
        ", but --network_backend=ucx of this node requires it; start all "
        "agents with the same --network_backend: ucx, auto or tcp"));
  }
  const auto deadline =
      std::chrono::steady_clock::now() + options_.connect_timeout;
  // It fits into the socket's buffer, so nobody waits for a reader.
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (!uses_ucx(i)) continue;
    const auto bytes = static_cast<uint32_t>(ucx_->address().size());
    absl::Status s = handshake::WriteAll(connections[i].fd(), &bytes,
                                         sizeof(bytes), deadline);
    if (s.ok()) {
      s = handshake::WriteAll(connections[i].fd(), ucx_->address().data(),
                              bytes, deadline);
    }
    if (!s.ok()) return connector_->CannotConnect(i, s);
  }
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (!uses_ucx(i)) continue;
    pollfd wait{connections[i].fd(), POLLIN, 0};
    while (!broken_ && poll(&wait, 1, kPollMs) == 0 &&
           std::chrono::steady_clock::now() < deadline) {
    }
    if (broken_) return absl::AbortedError("stopped");
    uint32_t bytes = 0;
    absl::Status s = handshake::ReadAll(connections[i].fd(), &bytes,
                                        sizeof(bytes), deadline);
    if (s.ok() && bytes > kMaxUcxAddressBytes) {
      s = absl::InvalidArgumentError("its UCX address is invalid");
    }
    std::string address(s.ok() ? bytes : 0, '\0');
    if (s.ok()) {
      s = handshake::ReadAll(connections[i].fd(), address.data(), bytes,
                             deadline);
    }
    if (!s.ok()) return connector_->CannotConnect(i, s);
    ucx_->AddPeer(i, std::move(address));
  }
  if (paths.ucx > 0) {
    const auto failed = ucx_->Start(options_.connect_timeout,
                                    [this] { return broken_.load(); });
    if (failed) {
      return connector_->CannotConnect(failed->node,
                                       absl::UnavailableError(failed->why));
    }
  }
  if (options_.on_data_paths) options_.on_data_paths(paths);
  return absl::OkStatus();
}

// --- Ends -------------------------------------------------------------------

absl::Status TcpBackend::status() const {
  std::lock_guard lock(mutex_);
  // After Abort(), errors of the closed connections do not matter.
  if (aborted_) return absl::AbortedError("the network backend was stopped");
  if (broken_) return absl::UnavailableError(broken_text_);
  return absl::OkStatus();
}

void TcpBackend::OnFailed(uint32_t node, const std::string& why) {
  Break(absl::StrCat("the connection to ", connector_->NodeName(node),
                     " failed: ", why));
}

// Other connections stay open: closing them would look like a failure of this
// node.
void TcpBackend::Break(const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_text_ = text;
    broken_ = true;
  }
  std::vector<std::shared_ptr<Flight>> flights;
  {
    std::lock_guard lock(flights_mutex_);
    for (const InFlight& f : flights_) flights.push_back(f.flight);
  }
  for (const auto& flight : flights) flight->Cancel();
}

void TcpBackend::Abort() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    if (connector_ != nullptr) connector_->Close();  // ends Connect
  }
  Break("stopped");
  // Prepare() no longer sets them.
  for (const auto& to_nodes : connections_) {
    for (const auto& connection : to_nodes) {
      if (connection != nullptr) connection->Close();
    }
  }
  if (ucx_ != nullptr) ucx_->Close();
}

// --- Chunks -----------------------------------------------------------------

void TcpBackend::OnEnded(std::function<void(const absl::Status&)> on_ended) {
  std::unique_lock lock(flights_mutex_);
  all_reported_.wait(lock, [this] { return !reporting_; });
  on_ended_ = std::move(on_ended);
}

void TcpBackend::Start(Work work) {
  if (work.nodes.empty()) {
    work.nodes.resize(nodes_);
    std::iota(work.nodes.begin(), work.nodes.end(), 0u);
  }
  // Without connections nothing can be planned.
  ExchangePlan plan;
  if (!broken_) plan = PlanFor(work, self_, LevelsFor(work));
  const std::vector<Lane> lanes = NextLanes(work.nodes, plan);
  std::vector<std::byte> inbox = TakeInbox(plan.inbox_bytes);
  const auto flight = std::make_shared<Flight>(
      this, std::move(work), std::move(plan), lanes, std::move(inbox));
  {
    std::lock_guard lock(flights_mutex_);
    flights_.push_back({flight});
  }
  flight->Start();
}

std::vector<Level> TcpBackend::LevelsFor(const Work& work) {
  if (!model_ || !work.reduces || work.scatters) return {};
  return model_->LevelsFor(static_cast<uint32_t>(work.nodes.size()),
                           work.chunk.size(), work.streams);
}

std::vector<TcpBackend::Lane> TcpBackend::NextLanes(
    const std::vector<uint32_t>& nodes, const ExchangePlan& plan) {
  std::vector<Lane> lanes;
  if (options_.connections == 1) {
    for (const uint32_t node : nodes) lanes.push_back({started_[node]++, 0});
    return lanes;
  }
  std::vector<uint64_t> bytes(nodes_);
  for (const Stage& stage : plan.stages) {
    for (const Transfer& t : stage.sends) bytes[t.node] += t.bytes;
    for (const Transfer& t : stage.receives) bytes[t.node] += t.bytes;
  }
  for (const uint32_t node : nodes) {
    std::vector<uint64_t>& loads = loads_[node];
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes[node];
    lanes.push_back(
        {started_[node]++, static_cast<uint32_t>(least - loads.begin())});
  }
  return lanes;
}

PeerLink* TcpBackend::LinkTo(bool is_send, uint32_t node,
                             const Lane& lane) const {
  PeerLink* const ucx = ucx_ == nullptr ? nullptr : ucx_->LinkTo(node);
  if (ucx != nullptr) return ucx;
  const bool up = is_send ? self_ < node : node < self_;
  return connections_[2 * lane.connection + (up ? 0 : 1)][node].get();
}

void TcpBackend::OnFlightEnded(Flight* flight) {
  std::unique_lock lock(flights_mutex_);
  for (InFlight& f : flights_) {
    if (f.flight.get() == flight) f.ended = true;
  }
  // The thread that reports one looks for the next, so none is missed.
  if (reporting_) return;
  reporting_ = true;
  while (!flights_.empty() && flights_.front().ended) {
    std::shared_ptr<Flight> first = std::move(flights_.front().flight);
    flights_.pop_front();
    lock.unlock();
    Report(*first);
    lock.lock();
    inboxes_.push_back(std::move(first->inbox()));
  }
  reporting_ = false;
  all_reported_.notify_all();
}

void TcpBackend::Report(Flight& flight) {
  if (!flight.failed()) {
    sent_ += flight.bytes_sent();
    received_ += flight.bytes_received();
  }
  on_ended_(flight.failed() ? status() : absl::OkStatus());
}

std::vector<std::byte> TcpBackend::TakeInbox(uint64_t bytes) {
  std::vector<std::byte> inbox;
  {
    std::lock_guard lock(flights_mutex_);
    if (!inboxes_.empty()) {
      inbox = std::move(inboxes_.back());
      inboxes_.pop_back();
    }
  }
  if (inbox.size() < bytes) inbox.resize(bytes);
  return inbox;
}

}  // namespace maypole::worker
