// LocalAddressTowards, OwnAddress: find the address at which other nodes can
// reach this machine.
//
// Purpose: the routing table tells which local address is used towards another
// machine; nodes near that machine can usually reach this one at that address.
//
// Thread contract: any thread; the functions block while they look up names.
#ifndef MAYPOLE_WORKER_NETWORK_ROUTE_H_
#define MAYPOLE_WORKER_NETWORK_ROUTE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace maypole::worker {

// Returns the local address on the route to `peer`, HOST:PORT or [IPV6]:PORT.
// Sends nothing.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& peer);

// Returns the local address on the route to the coordinator. If that is a
// loopback address (the coordinator is on this machine, or its name resolves to
// 127.0.1.1 here), returns the address on the route to the first of `others`
// for which it is not. `others` are addresses as the coordinator sees them.
absl::StatusOr<std::string> OwnAddress(const std::string& coordinator,
                                       const std::vector<std::string>& others);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_ROUTE_H_
