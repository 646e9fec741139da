// SetTcpUserTimeout: bounds how long TCP connections wait for acknowledgements.
//
// Purpose: a cut wire reports no error; the kernel retransmits for a quarter of
// an hour. Gloo sets no bound for connections in use and does not expose their
// descriptors, so this function examines all descriptors of the process.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_
#define MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_

#include <chrono>

namespace maypole::worker {

// Sets TCP_USER_TIMEOUT on each TCP connection of this process that has none
// yet (gRPC sets its own): a connection then fails when sent data has not been
// acknowledged for this long. Returns how many connections were changed; with 0
// ms it does nothing. A peer that is slow to read does not trigger the timeout,
// because its kernel still acknowledges.
int SetTcpUserTimeout(std::chrono::milliseconds timeout);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_
