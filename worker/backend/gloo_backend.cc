#include "worker/backend/gloo_backend.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/authenticated_listener.h"
#include "worker/backend/gloo_mesh.h"
#include "worker/backend/tcp_loop.h"
#include "worker/backend/tcp_options.h"

namespace maypole::worker {
namespace {

// Gloo matches sends and receives of a pair by slot number. The slots of chunks
// are greater than this one (gloo_flight.cc).
constexpr uint64_t kWatchSlot = 2;

}  // namespace

GlooBackend::GlooBackend(GlooOptions options) : options_(std::move(options)) {}

GlooBackend::~GlooBackend() {
  Abort();
  {
    std::unique_lock lock(flights_mutex_);
    all_reported_.wait(lock,
                       [this] { return flights_.empty() && !reporting_; });
  }
  // Only now nobody calls a watch any more. Buffers end before their meshes.
  for (const auto& loop : loops_) loop->Stop();
  watches_.clear();
}

std::string GlooBackend::NodeName(uint32_t node) const {
  return node < options_.node_names.size() ? options_.node_names[node]
                                           : absl::StrCat("node ", node);
}

absl::StatusOr<std::vector<std::string>> GlooBackend::Prepare(
    uint32_t node_index, uint32_t nodes) {
  self_ = node_index;
  nodes_ = nodes;
  started_.assign(nodes, 0);
  const auto cannot_listen = [this](const std::string& why) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for other nodes on address '",
                     options_.host, "' (set --network): ", why));
  };
  if (options_.host.empty() && options_.find_host) {
    absl::StatusOr<std::string> found =
        options_.find_host([this] { return broken_.load(); });
    if (!found.ok()) return cannot_listen(std::string(found.status().message()));
    options_.host = *std::move(found);
  }
  absl::StatusOr<std::unique_ptr<AuthenticatedListener>> listener =
      AuthenticatedListener::Open({.host = options_.host,
                                   .self = self_,
                                   .nodes = nodes_,
                                   .connections = 2 * options_.connections + 1,
                                   .epoch = options_.nonce});
  if (!listener.ok())
    return cannot_listen(std::string(listener.status().message()));
  try {
    std::vector<std::shared_ptr<TcpLoop>> loops;
    std::vector<std::shared_ptr<GlooMesh>> meshes;
    for (uint32_t c = 0; c < options_.connections; ++c) {
      loops.push_back(std::make_shared<TcpLoop>());
      for (int direction = 0; direction < 2; ++direction) {
        meshes.push_back(std::make_shared<GlooMesh>(
            static_cast<int>(self_), static_cast<int>(nodes_), loops.back(),
            options_.early_bytes));
      }
    }
    std::vector<std::string> addresses(nodes_);
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i != self_) addresses[i] = (*listener)->AddressFor(i);
    }
    std::lock_guard lock(mutex_);
    if (aborted_) return absl::AbortedError("the network backend was stopped");
    loops_ = std::move(loops);
    meshes_ = std::move(meshes);
    listener_ = *std::move(listener);
    return addresses;
  } catch (const std::exception& e) {
    return cannot_listen(e.what());
  }
}

absl::Status GlooBackend::Connect(const std::vector<std::string>& addresses) {
  if (meshes_.empty() || addresses.size() != nodes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected addresses of ", nodes_, " nodes, got ", addresses.size()));
  }
  const absl::Status connected = ConnectPairs(addresses);
  listener_->Close();  // no further connections are expected
  if (!connected.ok()) {
    Break(std::string(connected.message()));
    const absl::Status why = status();
    // Return `connected` for its code; status() would say kUnavailable.
    return absl::IsAborted(why) ? why : connected;
  }
  WatchConnections();
  if (options_.max_levels > 0 && options_.costs) {
    model_.emplace(*options_.costs, options_.max_levels);
  } else if (options_.max_levels > 0) {
    return MeasureCosts();
  }
  return status();
}

absl::Status GlooBackend::MeasureCosts() {
  std::function<void(const absl::Status&)> on_ended = on_ended_;
  ProbeOptions probe{self_, nodes_, options_.max_levels,
                     options_.connect_timeout};
  probe.on_late = [this](std::optional<uint32_t> node) {
    Break(absl::StrCat(
        node ? NodeName(*node) : "another node",
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

absl::Status GlooBackend::ConnectPairs(
    const std::vector<std::string>& addresses) {
  if (const auto bad = listener_->SetPeers(addresses)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot connect to ", NodeName(bad->node), ": ", bad->why));
  }
  message_connections_.resize(nodes_);
  const auto deadline =
      AuthenticatedListener::Clock::now() + options_.connect_timeout;
  for (uint32_t i = 0; i < nodes_; ++i) {
    for (uint32_t c = 0; i != self_ && c <= meshes_.size(); ++c) {
      absl::StatusOr<Fd> connection = listener_->Connection(i, c, deadline);
      if (!connection.ok()) {
        return absl::Status(
            connection.status().code(),
            absl::StrCat(
                "cannot connect to ", NodeName(i), ": ",
                std::string(connection.status().message()),
                "; check that --network is an address other nodes can reach"));
      }
      absl::Status set =
          SetTcpTimeouts(connection->get(), options_.answer_timeout);
      set.Update(SetTcpCongestion(connection->get(), options_.congestion));
      if (!set.ok()) return set;
      if (c == meshes_.size()) {
        const int on = 1;
        setsockopt(connection->get(), IPPROTO_TCP, TCP_NODELAY, &on,
                   sizeof(on));
        message_connections_[i] = *std::move(connection);
        continue;
      }
      try {
        meshes_[c]->Adopt(static_cast<int>(i), *std::move(connection));
      } catch (const std::exception& e) {
        return absl::UnavailableError(absl::StrCat(
            "the connection to ", NodeName(i), " failed: ", e.what()));
      }
    }
  }
  return absl::OkStatus();
}

GlooBackend::Watch::Watch(GlooBackend* backend, GlooMesh& mesh, uint32_t node)
    : backend_(backend),
      node_(node),
      buffer_(mesh.CreateBuffer(&unused_, 1, {.listener = this})) {}

void GlooBackend::Watch::Post() {
  try {
    buffer_->recv(static_cast<int>(node_), kWatchSlot, 0, 1);
  } catch (const std::exception& e) {
    OnEnded(0, e.what());
  }
}

void GlooBackend::Watch::OnEnded(uint64_t, const std::string& failure) {
  backend_->OnFailed(node_, failure.empty()
                                ? "it sent data that no operation here expects"
                                : failure);
}

void GlooBackend::WatchConnections() {
  for (const auto& mesh : meshes_) {
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      watches_.push_back(std::make_unique<Watch>(this, *mesh, i));
      watches_.back()->Post();
    }
  }
}

// --- Ends -------------------------------------------------------------------

absl::Status GlooBackend::status() const {
  std::lock_guard lock(mutex_);
  // After Abort(), errors of the closed pairs do not matter.
  if (aborted_) return absl::AbortedError("the network backend was stopped");
  if (broken_) return absl::UnavailableError(broken_text_);
  return absl::OkStatus();
}

void GlooBackend::OnFailed(uint32_t node, const std::string& why) {
  Break(absl::StrCat("the connection to ", NodeName(node), " failed: ", why));
}

// Other pairs stay open: closing them would look like a failure of this node.
void GlooBackend::Break(const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_text_ = text;
    broken_ = true;
  }
  std::vector<std::shared_ptr<GlooFlight>> flights;
  {
    std::lock_guard lock(flights_mutex_);
    for (const InFlight& f : flights_) flights.push_back(f.flight);
  }
  for (const auto& flight : flights) flight->Cancel();
}

void GlooBackend::Abort() {
  std::vector<std::shared_ptr<GlooMesh>> meshes;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    if (listener_ != nullptr) listener_->Close();  // ends Connect
    meshes = meshes_;
  }
  Break("stopped");
  for (const auto& mesh : meshes) mesh->Close();
}

// --- Chunks -----------------------------------------------------------------

void GlooBackend::OnEnded(std::function<void(const absl::Status&)> on_ended) {
  std::unique_lock lock(flights_mutex_);
  all_reported_.wait(lock, [this] { return !reporting_; });
  on_ended_ = std::move(on_ended);
}

void GlooBackend::Start(Work work) {
  if (work.nodes.empty()) {
    work.nodes.resize(nodes_);
    std::iota(work.nodes.begin(), work.nodes.end(), 0u);
  }
  // Without connections nothing can be planned.
  ExchangePlan plan;
  if (!broken_) plan = PlanFor(work, self_, LevelsFor(work));
  const std::vector<uint64_t> numbers = Number(work.nodes);
  std::vector<std::byte> inbox = TakeInbox(plan.inbox_bytes);
  const auto flight = std::make_shared<GlooFlight>(
      static_cast<FlightHost*>(this), std::move(work), std::move(plan), numbers,
      std::move(inbox));
  {
    std::lock_guard lock(flights_mutex_);
    flights_.push_back({flight});
  }
  flight->Start();
}

std::vector<Level> GlooBackend::LevelsFor(const Work& work) {
  if (!model_ || !work.reduces || work.scatters) return {};
  return model_->LevelsFor(static_cast<uint32_t>(work.nodes.size()),
                           work.chunk.size(), work.streams);
}

std::vector<uint64_t> GlooBackend::Number(const std::vector<uint32_t>& nodes) {
  std::vector<uint64_t> numbers;
  for (const uint32_t node : nodes) numbers.push_back(started_[node]++);
  return numbers;
}

std::unique_ptr<TcpBuffer> GlooBackend::BufferFor(bool is_send, uint32_t node,
                                                  uint64_t number, void* data,
                                                  uint64_t bytes,
                                                  TransferTag tag) {
  const uint32_t from = is_send ? self_ : node;
  const uint32_t to = is_send ? node : self_;
  const auto& mesh =
      meshes_[2 * (number % options_.connections) + (from < to ? 0 : 1)];
  return mesh->CreateBuffer(data, bytes, tag);
}

void GlooBackend::OnFlightEnded(GlooFlight* flight) {
  std::unique_lock lock(flights_mutex_);
  for (InFlight& f : flights_) {
    if (f.flight.get() == flight) f.ended = true;
  }
  // The thread that reports one looks for the next, so none is missed.
  if (reporting_) return;
  reporting_ = true;
  while (!flights_.empty() && flights_.front().ended) {
    std::shared_ptr<GlooFlight> first = std::move(flights_.front().flight);
    flights_.pop_front();
    lock.unlock();
    Report(*first);
    lock.lock();
    inboxes_.push_back(std::move(first->inbox()));
  }
  reporting_ = false;
  all_reported_.notify_all();
}

void GlooBackend::Report(GlooFlight& flight) {
  if (!flight.failed()) {
    sent_ += flight.bytes_sent();
    received_ += flight.bytes_received();
  }
  on_ended_(flight.failed() ? status() : absl::OkStatus());
}

std::vector<std::byte> GlooBackend::TakeInbox(uint64_t bytes) {
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
