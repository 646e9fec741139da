// GlooBackend: setting up and ending. gloo_flight.cc carries out chunks.
#include "worker/backend/gloo_backend.h"

#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/authenticated_listener.h"
#include "worker/backend/gloo_mesh.h"
#include "worker/backend/tcp_timeouts.h"

namespace maypole::worker {
namespace {

// Gloo matches sends and receives of a pair by slot number. The slots of chunks
// are greater than this one (gloo_flight.cc).
constexpr uint64_t kWatchSlot = 2;

constexpr auto kForEver = std::chrono::hours(24 * 365);

}  // namespace

GlooBackend::GlooBackend(GlooOptions options) : options_(std::move(options)) {}

GlooBackend::~GlooBackend() {
  Abort();
  // Chunks in flight end, with their callbacks, before the threads end.
  to_reduce_.Close();
  if (reducer_.joinable()) reducer_.join();
  to_finish_.Close();
  if (finisher_.joinable()) finisher_.join();
  if (watcher_.joinable()) watcher_.join();
  watched_.buffer.reset();
  try {
    meshes_.clear();
  } catch (const std::exception&) {
    // Closing broken pairs may throw; there is nothing left to do.
  }
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
  absl::StatusOr<std::unique_ptr<AuthenticatedListener>> listener =
      AuthenticatedListener::Open({.host = options_.host,
                                   .self = self_,
                                   .nodes = nodes_,
                                   .connections = 2 * options_.connections + 1,
                                   .epoch = options_.nonce});
  if (!listener.ok())
    return cannot_listen(std::string(listener.status().message()));
  try {
    std::vector<std::shared_ptr<GlooMesh>> meshes;
    for (uint32_t c = 0; c < 2 * options_.connections; ++c) {
      meshes.push_back(std::make_shared<GlooMesh>(static_cast<int>(self_),
                                                  static_cast<int>(nodes_)));
    }
    std::vector<std::string> addresses(nodes_);
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i != self_) addresses[i] = (*listener)->AddressFor(i);
    }
    std::lock_guard lock(mutex_);
    if (aborted_) return absl::AbortedError("the network backend was stopped");
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
  try {
    StartThreads();
  } catch (const std::exception& e) {
    Break(absl::StrCat("cannot start to exchange data: ", e.what()));
    return status();
  }
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
      const absl::Status bounded =
          SetTcpTimeouts(connection->get(), options_.answer_timeout);
      if (!bounded.ok()) return bounded;
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

void GlooBackend::StartThreads() {
  // One buffer receives from all pairs; no byte is ever sent to it.
  watched_.buffer = meshes_[0]->createUnboundBuffer(&watched_, 1);
  for (const auto& mesh : meshes_) {
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      mesh->getPair(static_cast<int>(i))
          ->recv(watched_.buffer.get(), kWatchSlot, 0, 0);
    }
  }
  reducer_ = std::thread([this] { ReduceAll(); });
  finisher_ = std::thread([this] { FinishAll(); });
  watcher_ = std::thread([this] { Watch(); });
}

// --- Ends -------------------------------------------------------------------

absl::Status GlooBackend::status() const {
  std::lock_guard lock(mutex_);
  // After Abort(), errors of the closed pairs do not matter.
  if (aborted_) return absl::AbortedError("the network backend was stopped");
  if (broken_) return absl::UnavailableError(broken_text_);
  return absl::OkStatus();
}

void GlooBackend::Break(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  broken_ = true;
  broken_text_ = text;
  // Other pairs stay open: closing them would look like a failure of this node.
  for (Part* p : waiting_) {
    if (p->is_send) {
      p->buffer->abortWaitSend();
    } else {
      p->buffer->abortWaitRecv();
    }
  }
}

void GlooBackend::Abort() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    if (listener_ != nullptr) listener_->Close();  // ends Connect
    try {
      for (const auto& mesh : meshes_) mesh->Close();
    } catch (const std::exception&) {
      // A broken pair throws, but is closed all the same.
    }
  }
  Break("stopped");
}

void GlooBackend::Watch() {
  bool heard = true;
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    waiting_.push_back(&watched_);
  }
  std::string text = "it sent data that no operation here expects";
  try {
    heard = watched_.buffer->waitRecv(nullptr, kForEver);
  } catch (const std::exception& e) {
    text = e.what();
  }
  {
    std::lock_guard lock(mutex_);
    std::erase(waiting_, &watched_);
  }
  if (heard) NameTheLost(text);
}

// The watched buffer does not tell which pair has failed: find the pair that
// accepts no further receive.
void GlooBackend::NameTheLost(const std::string& text) {
  for (const auto& mesh : meshes_) {
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      try {
        mesh->getPair(static_cast<int>(i))
            ->recv(watched_.buffer.get(), kWatchSlot, 0, 0);
      } catch (const std::exception&) {
        return Break(
            absl::StrCat("the connection to ", NodeName(i), " failed: ", text));
      }
    }
  }
  Break(absl::StrCat("a connection to another node failed: ", text));
}

// --- Sends and receives -----------------------------------------------------

GlooBackend::Part GlooBackend::MakePart(GlooMesh& mesh, uint32_t node,
                                        bool is_send, uint64_t slot,
                                        std::byte* data, uint64_t bytes) {
  try {
    Part part{mesh.createUnboundBuffer(data, bytes), node, is_send};
    if (is_send) {
      part.buffer->send(static_cast<int>(node), slot);
    } else {
      part.buffer->recv(static_cast<int>(node), slot);
    }
    return part;
  } catch (const std::exception& e) {
    // Gloo's exceptions do not say which connection it was.
    throw std::runtime_error(absl::StrCat("the connection to ", NodeName(node),
                                          " failed: ", e.what()));
  }
}

bool GlooBackend::Wait(Part& part) {
  {
    std::lock_guard lock(mutex_);
    if (broken_) return false;
    waiting_.push_back(&part);
  }
  bool ended = false;
  std::optional<std::string> failure;
  try {
    ended = part.is_send ? part.buffer->waitSend(nullptr, kForEver)
                         : part.buffer->waitRecv(nullptr, kForEver);
  } catch (const std::exception& e) {
    failure = absl::StrCat("the connection to ", NodeName(part.node),
                           " failed: ", e.what());
  }
  {
    std::lock_guard lock(mutex_);
    std::erase(waiting_, &part);
  }
  if (failure) Break(*failure);
  return ended;
}

bool GlooBackend::WaitAll(std::vector<Part>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [this](Part& p) { return Wait(p); });
}

}  // namespace maypole::worker
