#include "worker/backend/gloo_mesh.h"

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>

#include <vector>

namespace maypole::worker {
namespace {

// Gloo multiplies a pair's timeout by 5 when it connects.
constexpr int kGlooConnectFactor = 5;

}  // namespace

GlooMesh::GlooMesh(const std::string& host, int self, int nodes,
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

std::string GlooMesh::AddressFor(int node) {
  const std::vector<char> bytes = getPair(node)->address().bytes();
  return std::string(bytes.begin(), bytes.end());
}

void GlooMesh::Connect(int node, const std::string& address) {
  getPair(node)->connect(std::vector<char>(address.begin(), address.end()));
}

void GlooMesh::Close() {
  for (int i = 0; i < size; ++i) {
    if (i != rank) getPair(i)->close();
  }
}

}  // namespace maypole::worker
