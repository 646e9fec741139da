#include "worker/backend/gloo_backend.h"

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

// Gloo matches sends and receives of a pair by this number, in order. All our
// calls come in one order on all nodes, so one number per purpose is enough.
enum Tag : uint64_t { kHandshake = 1, kScatter = 2, kExchange = 3 };

// Gloo multiplies a pair's timeout by 5 when it connects.
constexpr int kGlooConnectFactor = 5;
constexpr auto kForEver = std::chrono::hours(24 * 365);

constexpr uint64_t kSegmentAlignment = 64;

// Largest part of a chunk that node `node` reduces.
Segment OwnedSegment(uint64_t chunk_bytes, uint32_t nodes, uint32_t node) {
  uint64_t each = (chunk_bytes + nodes - 1) / nodes;
  each = (each + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  const uint64_t begin = std::min(each * node, chunk_bytes);
  return {node, begin, std::min(each, chunk_bytes - begin)};
}

struct Handshake {
  uint64_t nonce;
  uint32_t node;
  uint32_t nodes;
};

}  // namespace

class GlooBackend::Mesh : public gloo::Context {
 public:
  Mesh(const std::string& host, int self, int nodes,
       std::chrono::milliseconds connect_timeout)
      : gloo::Context(self, nodes) {
    gloo::transport::tcp::attr attr;
    attr.hostname = host;
    device_ = gloo::transport::tcp::CreateDevice(attr);
    transportContext_ = device_->createContext(self, nodes);
    transportContext_->setTimeout(connect_timeout / kGlooConnectFactor);
    for (int i = 0; i < nodes; ++i) {
      if (i != self) transportContext_->createPair(i)->setLocalRank(0);
    }
  }

  std::string AddressFor(int node) {
    const std::vector<char> bytes = getPair(node)->address().bytes();
    return std::string(bytes.begin(), bytes.end());
  }

  void Connect(int node, const std::string& address) {
    getPair(node)->connect(std::vector<char>(address.begin(), address.end()));
  }

  void Close() {
    for (int i = 0; i < size; ++i) {
      if (i != rank) getPair(i)->close();
    }
  }
};

class GlooBackend::Wave {
 public:
  explicit Wave(GlooBackend* backend) : backend_(backend) {}
  ~Wave() {
    std::lock_guard lock(backend_->mutex_);
    backend_->wave_ = nullptr;
  }

  // Receives first: then what arrives has its place. Throws as Wait().
  void Receive(uint32_t node, Tag tag, std::byte* data, uint64_t bytes) {
    if (bytes == 0) return;
    Naming(node, [&] {
      auto buffer = backend_->mesh_->createUnboundBuffer(data, bytes);
      buffer->recv(static_cast<int>(node), tag);
      parts_.push_back({std::move(buffer), node, false});
    });
    received_ += bytes;
  }

  void Send(uint32_t node, Tag tag, const std::byte* data, uint64_t bytes) {
    if (bytes == 0) return;
    Naming(node, [&] {
      auto buffer = backend_->mesh_->createUnboundBuffer(
          const_cast<std::byte*>(data), bytes);
      parts_.push_back({std::move(buffer), node, true});
      parts_.back().buffer->send(static_cast<int>(node), tag);
    });
    sent_ += bytes;
  }

  // False: aborted. Throws an exception that names the node.
  bool Wait() {
    {
      std::lock_guard lock(backend_->mutex_);
      if (backend_->aborted_) return false;
      backend_->wave_ = this;
    }
    for (Part& p : parts_) {
      bool done = false;
      Naming(p.node, [&] {
        done = p.is_send ? p.buffer->waitSend(nullptr, kForEver)
                         : p.buffer->waitRecv(nullptr, kForEver);
      });
      if (!done) return false;
    }
    backend_->sent_ += sent_;
    backend_->received_ += received_;
    return true;
  }

  // Called with the backend's mutex held.
  void Abort() {
    for (Part& p : parts_) {
      if (p.is_send) {
        p.buffer->abortWaitSend();
      } else {
        p.buffer->abortWaitRecv();
      }
    }
  }

 private:
  // Gloo's exceptions do not say which connection it was.
  template <typename F>
  void Naming(uint32_t node, F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      throw std::runtime_error(absl::StrCat("the connection to ",
                                            backend_->NodeName(node),
                                            " failed: ", e.what()));
    }
  }

  struct Part {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    uint32_t node;
    bool is_send;
  };
  GlooBackend* const backend_;
  std::vector<Part> parts_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

GlooBackend::GlooBackend(GlooOptions options) : options_(std::move(options)) {}

GlooBackend::~GlooBackend() {
  Abort();
  try {
    mesh_.reset();
  } catch (const std::exception&) {
    // Closing broken pairs may complain; there is nothing left to do.
  }
}

std::string GlooBackend::NodeName(uint32_t node) const {
  if (node < options_.node_names.size()) return options_.node_names[node];
  return absl::StrCat("node ", node);
}

absl::StatusOr<std::vector<std::string>> GlooBackend::Prepare(
    uint32_t node_index, uint32_t nodes) {
  self_ = node_index;
  nodes_ = nodes;
  try {
    auto mesh = std::make_shared<Mesh>(
        options_.host, static_cast<int>(node_index), static_cast<int>(nodes),
        options_.connect_timeout);
    std::vector<std::string> addresses(nodes);
    for (uint32_t i = 0; i < nodes; ++i) {
      if (i != self_) addresses[i] = mesh->AddressFor(static_cast<int>(i));
    }
    std::lock_guard lock(mutex_);
    mesh_ = std::move(mesh);
    return addresses;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for other nodes on address '",
                     options_.host, "' (set --network): ", e.what()));
  }
}

absl::Status GlooBackend::Usable() const {
  if (aborted_) return absl::AbortedError("the network backend was stopped");
  if (broken_) return absl::UnavailableError("the network backend has failed");
  return absl::OkStatus();
}

absl::Status GlooBackend::Connect(const std::vector<std::string>& addresses) {
  if (mesh_ == nullptr || addresses.size() != nodes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected addresses of ", nodes_, " nodes, got ", addresses.size()));
  }
  if (absl::Status s = ConnectPairs(addresses); !s.ok()) {
    return Broken(std::string(s.message()));
  }
  return ShakeHands();
}

absl::Status GlooBackend::ConnectPairs(
    const std::vector<std::string>& addresses) {
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    if (absl::Status s = Usable(); !s.ok()) return s;
    try {
      mesh_->Connect(static_cast<int>(i), addresses[i]);
    } catch (const std::exception& e) {
      return absl::UnavailableError(absl::StrCat(
          "cannot connect to ", NodeName(i), ": ", e.what(),
          "; check that --network is an address other nodes can reach"));
    }
  }
  return absl::OkStatus();
}

absl::Status GlooBackend::ShakeHands() {
  const Handshake mine{options_.nonce, self_, nodes_};
  std::vector<Handshake> theirs(nodes_);
  {
    Wave wave(this);
    try {
      for (uint32_t i = 0; i < nodes_; ++i) {
        if (i == self_) continue;
        wave.Receive(i, kHandshake, reinterpret_cast<std::byte*>(&theirs[i]),
                     sizeof(Handshake));
        wave.Send(i, kHandshake, reinterpret_cast<const std::byte*>(&mine),
                  sizeof(mine));
      }
    } catch (const std::exception& e) {
      return Broken(e.what());
    }
    if (absl::Status s = Finished(wave); !s.ok()) return s;
  }
  for (uint32_t i = 0; i < nodes_; ++i) {
    if (i == self_) continue;
    const Handshake& h = theirs[i];
    if (h.nonce == mine.nonce && h.node == i && h.nodes == nodes_) continue;
    broken_ = true;
    return absl::PermissionDeniedError(
        absl::StrCat("the connection to ", NodeName(i),
                     " was answered by somebody outside the job"));
  }
  return absl::OkStatus();
}

absl::Status GlooBackend::Broken(const std::string& text) {
  broken_ = true;
  // What pairs say that Abort() has closed is no news.
  return aborted_ ? Usable() : absl::UnavailableError(text);
}

absl::Status GlooBackend::Finished(Wave& wave) {
  try {
    return wave.Wait() ? absl::OkStatus() : Broken("a wait was stopped");
  } catch (const std::exception& e) {
    return Broken(e.what());
  }
}

absl::Status GlooBackend::Allreduce(std::span<std::byte> chunk, DType dtype,
                                    const Finish& finish) {
  if (absl::Status s = Usable(); !s.ok()) return s;
  const Segment own = OwnedSegment(chunk.size(), nodes_, self_);
  std::byte* const own_data = chunk.data() + own.offset;
  inbox_.resize(std::max<size_t>(inbox_.size(), own.bytes * nodes_));
  const auto inbox = [&](uint32_t node) {
    return inbox_.data() + node * own.bytes;
  };
  try {
    Wave wave(this);
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i != self_) wave.Receive(i, kScatter, inbox(i), own.bytes);
    }
    for (uint32_t i = 0; i < nodes_; ++i) {
      if (i == self_) continue;
      const Segment theirs = OwnedSegment(chunk.size(), nodes_, i);
      wave.Send(i, kScatter, chunk.data() + theirs.offset, theirs.bytes);
    }
    if (absl::Status s = Finished(wave); !s.ok()) return s;
  } catch (const std::exception& e) {
    return Broken(e.what());
  }
  if (own.bytes > 0) {
    std::vector<const std::byte*> inputs(nodes_);
    for (uint32_t i = 0; i < nodes_; ++i) {
      inputs[i] = i == self_ ? own_data : inbox(i);
    }
    Sum(dtype, inputs, own_data, own.bytes / SizeOf(dtype), finish);
  }
  std::vector<Segment> segments;
  for (uint32_t i = 0; i < nodes_; ++i) {
    segments.push_back(OwnedSegment(chunk.size(), nodes_, i));
  }
  return Exchange(chunk, segments);
}

absl::Status GlooBackend::Exchange(std::span<std::byte> chunk,
                                   std::span<const Segment> segments) {
  if (absl::Status s = Usable(); !s.ok()) return s;
  try {
    Wave wave(this);
    for (const Segment& s : segments) {
      if (s.node == self_ || s.node >= nodes_) continue;
      wave.Receive(s.node, kExchange, chunk.data() + s.offset, s.bytes);
    }
    for (const Segment& s : segments) {
      if (s.node != self_) continue;
      for (uint32_t i = 0; i < nodes_; ++i) {
        if (i == self_) continue;
        wave.Send(i, kExchange, chunk.data() + s.offset, s.bytes);
      }
    }
    return Finished(wave);
  } catch (const std::exception& e) {
    return Broken(e.what());
  }
}

void GlooBackend::Abort() {
  std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  if (wave_ != nullptr) wave_->Abort();
  if (mesh_ == nullptr) return;
  try {
    mesh_->Close();  // also ends a Connect that waits
  } catch (const std::exception&) {
    // A pair that is broken already complains; it is closed all the same.
  }
}

}  // namespace maypole::worker
