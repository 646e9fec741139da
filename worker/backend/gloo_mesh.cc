#include "worker/backend/gloo_mesh.h"

#include <utility>

namespace maypole::worker {

GlooMesh::GlooMesh(int self, int nodes, std::shared_ptr<TcpLoop> loop,
                   uint64_t early_bytes)
    : gloo::Context(self, nodes),
      transport_(std::make_shared<TcpTransport>(self, nodes, std::move(loop),
                                                early_bytes)) {
  transportContext_ = transport_;
}

void GlooMesh::Adopt(int node, Fd connection) {
  transport_->Adopt(node, std::move(connection));
}

}  // namespace maypole::worker
