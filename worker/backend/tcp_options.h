// Options of the TCP connections between executors.
//
// Purpose: a cut wire reports no error: the kernel retransmits sent data for a
// quarter of an hour, and an end that only receives would wait for ever. And
// the system's congestion control is chosen for connections of other kinds.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_OPTIONS_H_
#define MAYPOLE_WORKER_BACKEND_TCP_OPTIONS_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"

namespace maypole::worker {

// After this call the connection fails with ETIMEDOUT if the peer's kernel has
// not acknowledged sent data for `timeout`, or, while no data is on its way,
// has not answered the keepalive probes for that long. Probes are sent in steps
// of a sixth of the timeout, at least a second, so the second bound is up to
// one step longer. With 0 ms there is neither bound. A process that is slow or
// stopped does not trigger them, because its kernel still answers.
absl::Status SetTcpTimeouts(int fd, std::chrono::milliseconds timeout);

// Sets the congestion control for what this end sends. "system" leaves it as it
// is. "auto" replaces bbr by cubic if this process may use that: bbr paces
// what is sent by timers, which is made for long distances and was slower
// between near nodes (docs/benchmarks.md). Else a name that the
// kernel knows; kInvalidArgument says which ones it allows.
absl::Status SetTcpCongestion(int fd, const std::string& name);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_OPTIONS_H_
