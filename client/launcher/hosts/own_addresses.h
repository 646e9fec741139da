// The addresses of this machine, and the address at which it can reach the
// coordinator.
//
// Thread contract: functions; they query the system and the name service.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

// The addresses at which other machines may reach this one: no loopback and no
// link-local addresses. IPv4 before IPv6, without brackets.
std::vector<std::string> OwnAddresses();

// The host to listen at so that all addresses of this machine reach the socket:
// "[::]", which takes IPv4 too, or "0.0.0.0" where the kernel has no IPv6.
std::string AnyAddress();

// True for localhost, this machine's name, and names or addresses that resolve
// to an address of this machine.
bool IsThisMachine(const std::string& name);

// Sets *addresses to the first address of each interface in the list that this
// machine has, separated by commas, as maypole-worker's --network takes them.
Status AddressesOfInterfaces(const std::vector<std::string>& interfaces,
                             std::string* addresses);

// The address that a machine without any network gives to other nodes; these
// then all run on the same machine.
inline constexpr char kLoopbackAddress[] = "127.0.0.1";

// Resolves each HOST:PORT to numeric addresses. Loopback addresses (such as
// 127.0.1.1, which installers put in /etc/hosts) are left out, unless the list
// is only kLoopbackAddress and a port.
std::vector<std::string> ResolveForOthers(
    const std::vector<std::string>& addresses);

// Connects to all addresses (numeric HOST:PORT) at the same time, and sets
// *found to the first in the list that accepts a connection. If a later address
// answers first, the earlier ones get a little more time.
Status FirstThatAccepts(const std::vector<std::string>& addresses,
                        std::chrono::milliseconds limit, std::string* found);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_
