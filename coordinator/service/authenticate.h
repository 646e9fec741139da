// Authenticator: asks Credentials whether a call is allowed; also logs the
// callers that it refuses, and tells the AcceptLoop of those that it admits.
//
//   Authenticator authenticator(credentials, &refusals);
//   const grpc::Status status = authenticator.Check(*context, Role::kAdmin);
//
// Thread contract: any thread may call Check() and CheckJob(). Call
// OnAdmitted() before them.
#ifndef MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
#define MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/service/credentials.h"
#include "coordinator/service/refusals.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

class Authenticator {
 public:
  // `refusals` must outlive it.
  Authenticator(Credentials credentials, Refusals* refusals)
      : credentials_(std::move(credentials)), refusals_(refusals) {}

  // `admitted` gets grpc::ServerContext::peer().
  void OnAdmitted(std::function<void(const std::string& peer)> admitted) {
    admitted_ = std::move(admitted);
  }
  // *only_job: see Credentials::Check(); null if the role has no job.
  grpc::Status Check(const grpc::ServerContextBase& context, Role role,
                     std::string* only_job = nullptr) const;
  // Like CheckJob() of credentials.h, for a call that was allowed.
  absl::Status CheckJob(const std::string& peer, const std::string& only_job,
                        const std::string& job) const;

 private:
  const Credentials credentials_;
  Refusals* const refusals_;
  std::function<void(const std::string&)> admitted_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_AUTHENTICATE_H_
