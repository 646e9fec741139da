#include "coordinator/service/authenticate.h"

namespace maypole::coordinator {

grpc::Status Authenticator::Check(const grpc::ServerContextBase& context,
                                  Role role) const {
  grpc::Status status = Authorize(context, role, secret_);
  if (!status.ok()) {
    refusals_->Report(context.peer(), status.error_message());
  } else if (admitted_) {
    admitted_(context.peer());
  }
  return status;
}

}  // namespace maypole::coordinator
