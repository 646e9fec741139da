// The address of this machine on the route to another: what others can reach
// us by, if they are where that other is.
//
// Thread contract: functions; they look names up and ask the routing table.
#ifndef MAYPOLE_WORKER_NETWORK_ROUTE_H_
#define MAYPOLE_WORKER_NETWORK_ROUTE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace maypole::worker {

// peer: HOST:PORT or [IPV6]:PORT. Sends nothing.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& peer);

// What other nodes reach this one by: the address on the route to the
// coordinator. Where that is loopback (the coordinator is on this machine, or
// its name resolves to 127.0.1.1 here), the one on the route to the first of
// `others`, addresses as the coordinator sees them, that is not.
absl::StatusOr<std::string> OwnAddress(const std::string& coordinator,
                                       const std::vector<std::string>& others);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_ROUTE_H_
