// How long TCP connections wait for an answer to what they have sent.
//
// A wire that is cut says nothing: the kernel sends again for a quarter of an
// hour. Gloo has no bound of its own for a connection in use and shows no
// descriptor, so this looks at all descriptors of the process.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_
#define MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_

#include <chrono>

namespace maypole::worker {

// Every TCP connection that this process has now, and that has no such bound
// yet (gRPC sets its own), fails when what it sent was not acknowledged for so
// long. Returns how many were given the bound; 0 ms: none, nothing is done. A
// peer that is slow to take data is no reason: its kernel answers.
int SetTcpUserTimeout(std::chrono::milliseconds timeout);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_USER_TIMEOUT_H_
