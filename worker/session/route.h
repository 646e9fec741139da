// The address of this machine on the route to another: what others can reach
// us by, if they are where that other is.
#ifndef MAYPOLE_WORKER_SESSION_ROUTE_H_
#define MAYPOLE_WORKER_SESSION_ROUTE_H_

#include <string>

#include "absl/status/statusor.h"

namespace maypole::worker {

// peer: HOST:PORT or [IPV6]:PORT. Sends nothing.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& peer);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_ROUTE_H_
