#include "coordinator/service/authenticate.h"

#include "coordinator/core/text.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {

grpc::Status Authenticate(const grpc::ServerContextBase& context, Role role,
                          const std::string& secret) {
  grpc::Status status = Authorize(context, role, secret);
  if (!status.ok()) {
    spdlog::warn("event=unauthenticated peer={} reason={}", context.peer(),
                 LogValue(status.error_message()));
  }
  return status;
}

}  // namespace maypole::coordinator
