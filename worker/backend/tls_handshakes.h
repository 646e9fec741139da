// TlsHandshakes: the TLS handshakes of several sockets, all at once.
//
// Purpose: both ends of a socket must take part, and in turns the last ones of
// many nodes would be late.
//
//   TlsHandshakes handshakes;
//   handshakes.Add(0, &socket);
//   while (!handshakes.empty()) {
//     for (auto& [tag, status] : handshakes.Step(20)) ...
//   }
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_BACKEND_TLS_HANDSHAKES_H_
#define MAYPOLE_WORKER_BACKEND_TLS_HANDSHAKES_H_

#include <poll.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/peer_socket.h"

namespace maypole::worker {

class TlsHandshakes {
 public:
  // The socket is encrypted, and must stay until its handshake has ended.
  void Add(uint64_t tag, PeerSocket* socket);
  void Remove(uint64_t tag);
  bool empty() const { return open_.empty(); }
  // One of those that have not ended.
  uint64_t first() const { return open_.front().tag; }
  // Waits up to `ms` milliseconds for the peers. Returns those that have ended,
  // and how.
  std::vector<std::pair<uint64_t, absl::Status>> Step(int ms);

 private:
  struct Open {
    uint64_t tag = 0;
    PeerSocket* socket = nullptr;
  };
  std::vector<Open> open_;
  std::vector<pollfd> waits_;  // of the same
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TLS_HANDSHAKES_H_
