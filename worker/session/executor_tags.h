// What the executor's epoll tells apart: one number for each descriptor.
#ifndef MAYPOLE_WORKER_SESSION_EXECUTOR_TAGS_H_
#define MAYPOLE_WORKER_SESSION_EXECUTOR_TAGS_H_

#include <cstdint>

#include "worker/core/actions.h"

namespace maypole::worker {

enum Tag : uint64_t {
  kControl = 1,
  kMailbox = 2,
  kBoardWake = 3,
  kStopSignal = 4,
  kFirstClient = 16,  // then two per client: socket, pidfd
};

inline uint64_t SocketTag(ClientId id) { return kFirstClient + 2 * id; }
inline uint64_t PidTag(ClientId id) { return SocketTag(id) + 1; }

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_EXECUTOR_TAGS_H_
