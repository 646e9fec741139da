// GlooMesh: a Gloo context with one connection to each other node.
//
// Purpose: provides Gloo's unbound buffers over connections that the caller has
// made and authenticated (authenticated_listener.h), through TcpTransport.
// Gloo's own TCP transport would make the connections itself and accept any
// process as the peer.
//
// Thread contract: as Gloo's: buffers may be used by several threads, and
// Close() may be called while others wait.
// Errors: all functions may throw std::exception, as Gloo does.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_

#include <gloo/context.h>

#include <cstdint>
#include <memory>

#include "common/system/fd.h"
#include "worker/backend/tcp_transport.h"

namespace maypole::worker {

class GlooMesh : public gloo::Context {
 public:
  // `loop` may be shared with other meshes, which then must end together.
  GlooMesh(int self, int nodes, std::shared_ptr<TcpLoop> loop,
           uint64_t early_bytes);

  // Takes the connection to `node`.
  void Adopt(int node, Fd connection);
  std::unique_ptr<TcpBuffer> CreateBuffer(void* data, size_t bytes,
                                          TransferTag tag) {
    return transport_->CreateBuffer(data, bytes, tag);
  }
  void Close() { transport_->Close(); }

 private:
  const std::shared_ptr<TcpTransport> transport_;  // also in transportContext_
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
