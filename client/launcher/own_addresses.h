// The addresses of this machine, and which coordinator it can reach.
//
// Thread contract: functions; they ask the system and the name service.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OWN_ADDRESSES_H_
#define MAYPOLE_CLIENT_LAUNCHER_OWN_ADDRESSES_H_

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

// By which other machines may reach this one: neither loopback nor valid on
// one link only. IPv4 before IPv6, without brackets.
std::vector<std::string> OwnAddresses();

// localhost, this machine's name, or a name or address that leads here.
bool IsThisMachine(const std::string& name);

// The first address of the first of these interfaces that has one.
Status AddressOfInterface(const std::vector<std::string>& interfaces,
                          std::string* address);

// "[::1]:5" for an address with colons.
std::string WithPort(const std::string& address, const std::string& port);

// Of some HOST:PORT (numbers) the first that accepts a connection; all are
// tried side by side. An address earlier in the list is waited for a little
// when a later one has answered already.
Status FirstThatAccepts(const std::vector<std::string>& addresses,
                        std::chrono::milliseconds limit, std::string* found);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OWN_ADDRESSES_H_
