// Authorizes calls: by the cluster secret in the metadata of every call
// (common/program/secret.h) and, with TLS, by the caller's certificate. (gRPC
// has checked before that the CA has issued the certificate.)
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
#define MAYPOLE_COORDINATOR_SERVICE_SECRET_H_

#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

enum class Role {
  kExecutor,
  kAdmin,  // the operator's calls
};

// OK, or the reason why the call is refused. With TLS the operator's calls need
// a certificate whose common name is kAdminName (common/program/tls.h).
grpc::Status Authorize(const grpc::ServerContextBase& context, Role role,
                       const std::string& secret);

// The part of Authorize() that checks the role. `authenticated`: the caller has
// presented a certificate of the CA, with this common name.
grpc::Status CheckRole(Role role, bool authenticated,
                       const std::string& common_name);

// UNAUTHENTICATED with an explanation unless the secret that a call carries
// (empty: none) is `secret`. An empty `secret` admits every caller.
grpc::Status CheckSecret(absl::string_view given, const std::string& secret);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SECRET_H_
