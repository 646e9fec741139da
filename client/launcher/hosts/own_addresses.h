// The addresses of this machine, and which coordinator it can reach.
//
// Thread contract: functions; they ask the system and the name service.
#ifndef MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_
#define MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

// By which other machines may reach this one: neither loopback nor valid on
// one link only. IPv4 before IPv6, without brackets.
std::vector<std::string> OwnAddresses();

// The host to listen at so that all addresses of this machine reach the socket:
// "[::]", which takes IPv4 too, or "0.0.0.0" where the kernel has no IPv6.
std::string AnyAddress();

// localhost, this machine's name, or a name or address that leads here.
bool IsThisMachine(const std::string& name);

// The first address of the first of these interfaces that has one.
Status AddressOfInterface(const std::vector<std::string>& interfaces,
                          std::string* address);

// What a machine without any network has for other nodes: those on itself.
inline constexpr char kLoopbackAddress[] = "127.0.0.1";

// Resolves names of HOST:PORT to numbers. What leads to this machine itself
// (127.0.1.1, as installers put it in /etc/hosts) is left out, unless it is
// all there is (kLoopbackAddress).
std::vector<std::string> ResolveForOthers(
    const std::vector<std::string>& addresses);

// Of some HOST:PORT (numbers) the first that accepts a connection; all are
// tried side by side. An address earlier in the list is waited for a little
// when a later one has answered already.
Status FirstThatAccepts(const std::vector<std::string>& addresses,
                        std::chrono::milliseconds limit, std::string* found);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_HOSTS_OWN_ADDRESSES_H_
