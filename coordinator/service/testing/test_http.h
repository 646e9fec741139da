// HttpGet: reads a page from a server on this machine, for tests.
//
// Thread contract: any thread; blocks until the server has hung up.
#ifndef MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_
#define MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_

#include <string>

#include "common/program/address.h"

namespace maypole::coordinator {

// Returns headers and body; empty if no server answers. IPv4 loopback only.
std::string HttpGet(const Address& address, const std::string& path);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_
