// GlooMesh: one TCP connection of Gloo's to every other node.
//
// Purpose: Gloo's pairs over connections that others have made (gate.h). Gloo
// would make them itself, with whoever comes first.
//
// Thread contract: as Gloo's: buffers may be used by several threads, Close()
// may be called while others wait.
// Invariants: everything may throw std::exception, as Gloo does.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_

#include <gloo/context.h>

#include <string>

#include "common/fd.h"

namespace maypole::worker {

class GlooMesh : public gloo::Context {
 public:
  // `host`: an address of this machine.
  GlooMesh(const std::string& host, int self, int nodes);

  // The connection to `node`.
  void Adopt(int node, Fd connection);
  void Close();
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_MESH_H_
