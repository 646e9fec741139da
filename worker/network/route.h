// LocalAddressTowards, OwnAddress, AddressOfInterface, InterfaceOf: find the
// address at which other nodes can reach this machine.
//
// Purpose: the routing table tells which local address is used towards another
// machine; nodes near that machine can usually reach this one at that address.
//
// Thread contract: any thread but one that runs an event loop: the functions
// block while they look up names.
#ifndef MAYPOLE_WORKER_NETWORK_ROUTE_H_
#define MAYPOLE_WORKER_NETWORK_ROUTE_H_

#include <chrono>
#include <functional>
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

// The first address of a network interface of this machine, IPv4 if it has one;
// empty if there is none. Looks up no name.
std::string AddressOfInterface(const std::string& name);
// The interface with this numeric address; empty if there is none.
std::string InterfaceOf(const std::string& address);

// Calls `find`, one of those with a peer, on another thread, because a look-up
// cannot be cancelled; that thread may outlive the call. An error if stopped()
// becomes true, or after kLookUpLimit.
inline constexpr std::chrono::seconds kLookUpLimit{20};
using FindAddress = std::function<absl::StatusOr<std::string>()>;
absl::StatusOr<std::string> FindUntil(const std::function<bool()>& stopped,
                                      FindAddress find);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_ROUTE_H_
