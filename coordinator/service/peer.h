// Where a call comes from.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_SERVICE_PEER_H_
#define MAYPOLE_COORDINATOR_SERVICE_PEER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace maypole::coordinator {

// The IP address in what grpc::ServerContext::peer() says: "10.0.0.7" of
// "ipv4:10.0.0.7:4001", "fd00::7" of "ipv6:%5Bfd00::7%5D:4001". Empty if there
// is none (a unix socket).
std::string PeerAddress(absl::string_view peer);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_PEER_H_
