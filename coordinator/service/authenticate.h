// Authenticator: as Authorize() of secret.h; also logs the callers that it
// refuses, and tells the AcceptLoop of those that it admits.
//
//   Authenticator authenticator(secret, &refusals);
//   const grpc::Status status = authenticator.Check(*context, Role::kAdmin);
//
// Thread contract: any thread may call Check(). Call OnAdmitted() before.
#ifndef MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
#define MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_

#include <functional>
#include <string>
#include <utility>

#include "coordinator/service/refusals.h"
#include "coordinator/service/secret.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

class Authenticator {
 public:
  // `refusals` must outlive it.
  Authenticator(std::string secret, Refusals* refusals)
      : secret_(std::move(secret)), refusals_(refusals) {}

  // `admitted` gets grpc::ServerContext::peer().
  void OnAdmitted(std::function<void(const std::string& peer)> admitted) {
    admitted_ = std::move(admitted);
  }
  grpc::Status Check(const grpc::ServerContextBase& context, Role role) const;

 private:
  const std::string secret_;
  Refusals* const refusals_;
  std::function<void(const std::string&)> admitted_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
