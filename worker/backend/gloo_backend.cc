// Setting up and ending; the way of a chunk is in gloo_flight.cc.
#include "worker/backend/gloo_backend.h"

#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/gloo_mesh.h"
#include "worker/backend/unanswered.h"

namespace maypole::worker {
namespace {

// Gloo matches sends and receives of a pair by such a number. Those of chunks
// lie above (gloo_flight.cc).
constexpr uint64_t kHandshakeSlot = 1;
constexpr uint64_t kWatchSlot = 2;

constexpr auto kForEver = std::chrono::hours(24 * 365);

struct Handshake {
  uint64_t nonce;
  uint32_t node;
  uint32_t nodes;
};

// The addresses of several connections as one: each after its length.
std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) {
    out.push_back(static_cast<char>(p.size()));
    out += p;
  }
  return out;
}

std::vector<std::string> Split(const std::string& joined) {
  std::vector<std::string> out;
  for (size_t at = 0; at < joined.size();) {
    const size_t bytes = static_cast<unsigned char>(joined[at]);
    out.push_back(joined.substr(at + 1, bytes));
    at += 1 + bytes;
  }
  return out;
}

}  // namespace

GlooBackend::GlooBackend(GlooOptions options) : options_(std::move(options)) {}

GlooBackend::~GlooBackend() {
  Abort();
  // What is on its way ends, with its callbacks, before the threads do.
  to_reduce_.Close();
  if (reducer_.joinable()) reducer_.join();
  to_finish_.Close();
  if (finisher_.joinable()) finisher_.join();
  if (watcher_.joinable()) watcher_.join();
  watched_.buffer.reset();
  try {
    meshes_.clear();
  } catch (const std::exception&) {
    // Closing broken pairs may complain; there is nothing left to do.
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
  try {
    std::vector<std::shared_ptr<GlooMesh>> meshes;
    for (uint32_t c = 0; c < 2 * options_.connections; ++c) {
      meshes.push_back(std::make_shared<GlooMesh>(
          options_.host, static_cast<int>(self_), static_cast<int>(nodes_),
          options_.connect_timeout));
    }
    std::vector<std::string> addresses(nodes_);
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      std::vector<std::string> parts;
      for (const auto& mesh : meshes) {
        parts.push_back(mesh->AddressFor(static_cast<int>(i)));
      }
      addresses[i] = Join(parts);
    }
    std::lock_guard lock(mutex_);
    if (aborted_) return absl::AbortedError("the network backend was stopped");
    meshes_ = std::move(meshes);
    return addresses;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for other nodes on address '",
                     options_.host, "' (set --network): ", e.what()));
  }
}

absl::Status GlooBackend::Connect(const std::vector<std::string>& addresses) {
  if (meshes_.empty() || addresses.size() != nodes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected addresses of ", nodes_, " nodes, got ", addresses.size()));
  }
  if (absl::Status s = ConnectPairs(addresses); !s.ok()) {
    Break(std::string(s.message()));
    return Why();
  }
  BoundUnanswered(options_.answer_timeout);
  if (absl::Status s = ShakeHands(); !s.ok()) return s;
  try {
    StartThreads();
  } catch (const std::exception& e) {
    Break(absl::StrCat("cannot start to exchange data: ", e.what()));
    return Why();
  }
  return absl::OkStatus();
}

absl::Status GlooBackend::ConnectPairs(
    const std::vector<std::string>& addresses) {
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    const std::vector<std::string> parts = Split(addresses[i]);
    if (parts.size() != meshes_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          NodeName(i), " offers ", parts.size(), " connections, expected ",
          meshes_.size(),
          "; --network_connections must be the same on all nodes"));
    }
    for (size_t c = 0; c < meshes_.size(); ++c) {
      if (absl::Status s = Why(); !s.ok()) return s;
      try {
        meshes_[c]->Connect(static_cast<int>(i), parts[c]);
      } catch (const std::exception& e) {
        return absl::UnavailableError(absl::StrCat(
            "cannot connect to ", NodeName(i), ": ", e.what(),
            "; check that --network is an address other nodes can reach"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GlooBackend::ShakeHands() {
  Handshake mine{options_.nonce, self_, nodes_};
  for (const auto& mesh : meshes_) {
    std::vector<Handshake> theirs(nodes_);
    std::vector<Part> parts;
    try {
      for (uint32_t i = 0; i < nodes_; ++i) {
        if (i == self_) continue;
        parts.push_back(MakePart(*mesh, i, false, kHandshakeSlot,
                                 reinterpret_cast<std::byte*>(&theirs[i]),
                                 sizeof(Handshake)));
        parts.push_back(MakePart(*mesh, i, true, kHandshakeSlot,
                                 reinterpret_cast<std::byte*>(&mine),
                                 sizeof(Handshake)));
      }
    } catch (const std::exception& e) {
      Break(e.what());
    }
    if (!WaitAll(parts)) return Why();
    for (uint32_t i = 0; i < nodes_; ++i) {
      const Handshake& h = theirs[i];
      if (i == self_ ||
          (h.nonce == mine.nonce && h.node == i && h.nodes == nodes_)) {
        continue;
      }
      const std::string text =
          absl::StrCat("the connection to ", NodeName(i),
                       " was answered by somebody outside the job");
      Break(text);
      return absl::PermissionDeniedError(text);
    }
  }
  return absl::OkStatus();
}

void GlooBackend::StartThreads() {
  // One buffer hears of all pairs; no byte is ever sent to it.
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

absl::Status GlooBackend::Why() const {
  std::lock_guard lock(mutex_);
  // What pairs say that Abort() has closed is no news.
  if (aborted_) return absl::AbortedError("the network backend was stopped");
  if (broken_) return absl::UnavailableError(broken_text_);
  return absl::OkStatus();
}

void GlooBackend::Break(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  broken_ = true;
  broken_text_ = text;
  // Other pairs stay open: who closed them would be taken for the culprit.
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
    try {
      for (const auto& mesh : meshes_) mesh->Close();  // ends Connect, too
    } catch (const std::exception&) {
      // A pair that is broken already complains; it is closed all the same.
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
  std::string text = "it sent what nobody waits for";
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

// The buffer that hears of all pairs does not say which one has failed: the
// one that takes no further receive.
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
