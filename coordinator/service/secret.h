// Who may call: the cluster secret as metadata of every call
// (common/program/secret.h) and, with TLS, the caller's certificate (that the
// CA has issued it has been checked before the call came here).
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
#define MAYPOLE_COORDINATOR_SERVICE_SECRET_H_

#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

enum class Role {
  kExecutor,
  kAdmin,  // the operator's calls
};

// OK, or why not. With TLS the operator's calls need a certificate whose common
// name is kAdminName (common/program/tls.h).
grpc::Status Authorize(const grpc::ServerContext& context, Role role,
                       const std::string& secret);

// The part of it that needs no call: `authenticated`: by a certificate of the
// CA, with this common name.
grpc::Status CheckRole(Role role, bool authenticated,
                       const std::string& common_name);

// UNAUTHENTICATED with a sentence unless the call carries the secret. An empty
// secret lets everybody in.
grpc::Status CheckSecret(const grpc::ServerContext& context,
                         const std::string& secret);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
