#include "worker/backend/tcp_transport.h"

#include <utility>

#include "worker/backend/tcp_pair.h"

namespace maypole::worker {

TcpTransport::TcpTransport(int self, int nodes, std::shared_ptr<TcpLoop> loop,
                           uint64_t early_bytes)
    : Context(self, nodes),
      loop_(std::move(loop)),
      early_bytes_(early_bytes),
      by_node_(static_cast<size_t>(nodes), nullptr) {
  for (int i = 0; i < nodes; ++i) {
    if (i != self) createPair(i);
  }
}

TcpTransport::~TcpTransport() {
  Close();
  loop_->Stop();
}

std::unique_ptr<gloo::transport::Pair>& TcpTransport::createPair(int node) {
  const auto i = static_cast<size_t>(node);
  auto pair = std::make_unique<TcpPair>(loop_.get(), early_bytes_);
  by_node_[i] = pair.get();
  pairs_[i] = std::move(pair);
  return pairs_[i];
}

std::unique_ptr<gloo::transport::UnboundBuffer>
TcpTransport::createUnboundBuffer(void* data, size_t bytes) {
  return CreateBuffer(data, bytes, {});
}

std::unique_ptr<TcpBuffer> TcpTransport::CreateBuffer(void* data, size_t bytes,
                                                      TransferTag tag) {
  return std::make_unique<TcpBuffer>(by_node_, data, bytes, tag);
}

void TcpTransport::Adopt(int node, Fd connection) {
  by_node_[static_cast<size_t>(node)]->Adopt(std::move(connection));
}

void TcpTransport::Close() {
  for (TcpPair* pair : by_node_) {
    if (pair != nullptr) pair->close();
  }
}

}  // namespace maypole::worker
