// HttpGet: reads a page from this machine, for tests.
#ifndef MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_
#define MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_

#include <string>

#include "common/program/address.h"

namespace maypole::coordinator {

// Headers and body; empty if nobody answers. IPv4 loopback only.
std::string HttpGet(const Address& address, const std::string& path);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_TESTING_TEST_HTTP_H_
