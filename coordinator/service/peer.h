// The IP address of the peer of a gRPC call.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_SERVICE_PEER_H_
#define MAYPOLE_COORDINATOR_SERVICE_PEER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace maypole::coordinator {

// Extracts the IP address from grpc::ServerContext::peer(): "10.0.0.7" from
// "ipv4:10.0.0.7:4001", "fd00::7" from "ipv6:%5Bfd00::7%5D:4001". Empty if
// there is none (a unix socket).
std::string PeerAddress(absl::string_view peer);

// The peer of a TCP socket as grpc::ServerContext::peer() has it; empty if it
// has gone.
std::string PeerOf(int socket);

// True if both are the same address and port, whatever their zones are called.
bool SamePeer(absl::string_view a, absl::string_view b);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_PEER_H_
