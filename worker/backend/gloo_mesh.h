// GlooMesh: one connection to every other node, as a context of Gloo's.
//
// Purpose: Gloo's unbound buffers over connections that others have made and
// authenticated (authenticated_listener.h), by a transport of our own
// (tcp_transport.h). Gloo's TCP transport would make them itself, with whoever
// comes first.
//
// Thread contract: as Gloo's: buffers may be used by several threads, Close()
// may be called while others wait.
// Invariants: everything may throw std::exception, as Gloo does.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_

#include <gloo/context.h>

#include <memory>

#include "common/system/fd.h"
#include "worker/backend/tcp_transport.h"

namespace maypole::worker {

class GlooMesh : public gloo::Context {
 public:
  GlooMesh(int self, int nodes);

  // The connection to `node`.
  void Adopt(int node, Fd connection);
  void Close() { transport_->Close(); }

 private:
  const std::shared_ptr<TcpTransport> transport_;  // as transportContext_
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
