// Credentials: who may do what at a coordinator.
//
// Purpose: each call shows a credential in its metadata (kSecretMetadata,
// common/program/secret.h) and, with TLS, a certificate; gRPC has checked that
// the CA has issued it. This class decides; authenticate.h and accept_loop.h
// ask it.
//
//   what a call shows               executors' calls   operators' calls
//   the cluster secret (agents)     of every job       if there is no operator
//                                                      secret
//   a job's ticket (job_ticket.h)   of that job        no
//   the operator secret             no                 yes
//   anything else, nothing          no                 no
//
// Without a cluster secret, executors' calls need none; without either secret,
// operators' calls need none. With TLS, operators' calls also need a
// certificate whose common name is kAdminName (common/program/tls.h).
//
//   const Credentials credentials(secret, operator_secret);
//   std::string only_job;
//   const auto call = credentials.Check(Role::kExecutor, shown, &only_job);
//   if (call.ok()) ...CheckJob(only_job, hello.job())...
//
// Thread contract: a value; pure functions. How long they take
// reveals nothing about a secret but its length.
#ifndef MAYPOLE_COORDINATOR_SERVICE_CREDENTIALS_H_
#define MAYPOLE_COORDINATOR_SERVICE_CREDENTIALS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace maypole::coordinator {

enum class Role {
  kExecutor,
  kAdmin,  // the operator's calls
};

class Credentials {
 public:
  Credentials() = default;  // no secrets
  // Empty: there is none. Two that are not empty must differ.
  Credentials(std::string cluster, std::string operators);

  // True if there is a cluster secret.
  bool KeepsStrangersOut() const { return !cluster_.empty(); }

  // OK, or the reason why the call is refused. *only_job: empty, or the only
  // job for which an executor may call.
  grpc::Status Check(Role role, absl::string_view shown,
                     std::string* only_job) const;
  // The same for a caller that has not called yet: OK if `shown` gives any
  // right.
  grpc::Status CheckStranger(absl::string_view shown) const;

 private:
  enum class Kind { kNone, kCluster, kOperators, kTicket, kUnknown };
  Kind KindOf(absl::string_view shown, std::string* job) const;

  std::string cluster_;
  std::string operators_;
};

// OK, or the reason why a caller that may only call for `only_job` (empty:
// every job) may not do so for `job`.
absl::Status CheckJob(const std::string& only_job, const std::string& job);

// OK, or the reason why a caller with this certificate does not have the role.
// `authenticated`: the caller has presented a certificate of the CA, with this
// common name.
grpc::Status CheckRole(Role role, bool authenticated,
                       const std::string& common_name);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_CREDENTIALS_H_
