// Authenticate(): as Authorize() of secret.h, and logs each refused call.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
#define MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_

#include <string>

#include "coordinator/service/secret.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

grpc::Status Authenticate(const grpc::ServerContextBase& context, Role role,
                          const std::string& secret);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
