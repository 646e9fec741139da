// SetTcpTimeouts: bounds how long a TCP connection works with a silent peer.
//
// Purpose: a cut wire reports no error. The kernel retransmits sent data for a
// quarter of an hour, and an end that only receives would wait for ever.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_TIMEOUTS_H_
#define MAYPOLE_WORKER_BACKEND_TCP_TIMEOUTS_H_

#include <chrono>

#include "absl/status/status.h"

namespace maypole::worker {

// After this call the connection fails with ETIMEDOUT if the peer's kernel has
// not acknowledged sent data for `timeout`, or, while no data is on its way,
// has not answered the keepalive probes for that long. Probes are sent in steps
// of a sixth of the timeout, at least a second, so the second bound is up to
// one step longer. With 0 ms there is neither bound. A process that is slow or
// stopped does not trigger them, because its kernel still answers.
absl::Status SetTcpTimeouts(int fd, std::chrono::milliseconds timeout);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_TIMEOUTS_H_
