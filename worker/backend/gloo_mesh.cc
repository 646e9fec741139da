#include "worker/backend/gloo_mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace maypole::worker {
namespace {

namespace tcp = gloo::transport::tcp;

// For Gloo's own timeouts; its waits are ours (gloo_backend.cc).
constexpr std::chrono::milliseconds kPairTimeout(4000);

// Of the library, which has made and knows its own (Debian's 20220518; see
// gloo_private).
static_assert(sizeof(tcp::Pair) == 896);

// A pair that gets its connection by Adopt().
class AdoptingPair : public tcp::Pair {
 public:
  AdoptingPair(tcp::Context* context, tcp::Device* device, int rank)
      : Pair(context, device, rank, kPairTimeout) {
    // Pair's constructor listens at a port of its own: nobody shall come there.
    std::lock_guard lock(m_);
    device_->unregisterDescriptor(fd_, this);
    ::close(std::exchange(fd_, -1));
    state_ = INITIALIZING;
  }

  void Adopt(Fd connection) {
    std::lock_guard lock(m_);
    throwIfException();
    if (state_ == CLOSED) throw std::runtime_error("closed");
    fd_ = connection.Release();
    handleConnected();
  }
};

class AdoptingContext : public tcp::Context {
 public:
  using tcp::Context::Context;

  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    pairs_[static_cast<size_t>(rank)] =
        std::make_unique<AdoptingPair>(this, device_.get(), rank);
    return pairs_[static_cast<size_t>(rank)];
  }
};

}  // namespace

GlooMesh::GlooMesh(const std::string& host, int self, int nodes)
    : gloo::Context(self, nodes) {
  tcp::attr attr;
  attr.hostname = host;
  device_ = tcp::CreateDevice(attr);
  transportContext_ = std::make_shared<AdoptingContext>(
      std::static_pointer_cast<tcp::Device>(device_), self, nodes);
  for (int i = 0; i < nodes; ++i) {
    if (i != self) transportContext_->createPair(i)->setLocalRank(0);
  }
}

void GlooMesh::Adopt(int node, Fd connection) {
  static_cast<AdoptingPair*>(getPair(node).get())->Adopt(std::move(connection));
}

void GlooMesh::Close() {
  for (int i = 0; i < size; ++i) {
    if (i != rank) getPair(i)->close();
  }
}

}  // namespace maypole::worker
