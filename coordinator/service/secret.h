// The cluster secret as metadata "maypole-secret" of every call.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
#define MAYPOLE_COORDINATOR_SERVICE_SECRET_H_

#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

inline constexpr char kSecretMetadata[] = "maypole-secret";

// UNAUTHENTICATED with a sentence unless the call carries the secret. An empty
// secret lets everybody in.
grpc::Status CheckSecret(const grpc::ServerContext& context,
                         const std::string& secret);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
