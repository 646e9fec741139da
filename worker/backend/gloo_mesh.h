// GlooMesh: one TCP connection of Gloo's to every other node.
//
// Thread contract: as Gloo's: buffers may be used by several threads, Close()
// may be called while others wait.
// Invariants: everything may throw std::exception, as Gloo does.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_

#include <gloo/context.h>

#include <chrono>
#include <string>

namespace maypole::worker {

class GlooMesh : public gloo::Context {
 public:
  // Listens on `host`, one port per peer.
  GlooMesh(const std::string& host, int self, int nodes,
           std::chrono::milliseconds connect_timeout);

  std::string AddressFor(int node);
  void Connect(int node, const std::string& address);
  void Close();
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
