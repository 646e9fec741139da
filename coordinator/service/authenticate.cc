#include "coordinator/service/authenticate.h"

#include <memory>

#include "common/program/secret.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace maypole::coordinator {
namespace {

grpc::Status CheckCertificate(const grpc::ServerContextBase& context,
                              Role role) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  const bool authenticated = auth != nullptr && auth->IsPeerAuthenticated();
  std::string name;
  if (authenticated) {
    const auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (!names.empty()) name = {names[0].data(), names[0].size()};
  }
  return CheckRole(role, authenticated, name);
}

absl::string_view Shown(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kSecretMetadata);
  if (it == metadata.end()) return "";
  return absl::string_view(it->second.data(), it->second.size());
}

}  // namespace

grpc::Status Authenticator::Check(const grpc::ServerContextBase& context,
                                  Role role, std::string* only_job) const {
  std::string job;
  grpc::Status status = CheckCertificate(context, role);
  if (status.ok()) status = credentials_.Check(role, Shown(context), &job);
  if (!status.ok()) {
    refusals_->Report(context.peer(), status.error_message());
  } else if (admitted_) {
    admitted_(context.peer());
  }
  if (only_job != nullptr) *only_job = std::move(job);
  return status;
}

absl::Status Authenticator::CheckJob(const std::string& peer,
                                     const std::string& only_job,
                                     const std::string& job) const {
  absl::Status status = coordinator::CheckJob(only_job, job);
  if (!status.ok()) refusals_->Report(peer, std::string(status.message()));
  return status;
}

}  // namespace maypole::coordinator
