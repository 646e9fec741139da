#include "coordinator/service/secret.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/program/secret.h"
#include "common/program/tls.h"
#include "coordinator/core/text.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace maypole::coordinator {

grpc::Status CheckRole(Role role, bool authenticated,
                       const std::string& common_name) {
  if (!authenticated || role != Role::kAdmin || common_name == kAdminName) {
    return grpc::Status::OK;
  }
  return grpc::Status(
      grpc::StatusCode::PERMISSION_DENIED,
      absl::StrCat("only a certificate with the name ", kAdminName,
                   " may do this, the caller's has the name ",
                   LogValue(Cut(common_name, kMaxHostBytes)),
                   "; give an operator's with --tls_cert and --tls_key"));
}

grpc::Status Authorize(const grpc::ServerContextBase& context, Role role,
                       const std::string& secret) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  const bool authenticated = auth != nullptr && auth->IsPeerAuthenticated();
  std::string name;
  if (authenticated) {
    const auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (!names.empty()) name = {names[0].data(), names[0].size()};
  }
  const grpc::Status status = CheckRole(role, authenticated, name);
  if (!status.ok()) return status;
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kSecretMetadata);
  return CheckSecret(
      it == metadata.end()
          ? absl::string_view()
          : absl::string_view(it->second.data(), it->second.size()),
      secret);
}

grpc::Status CheckSecret(absl::string_view given, const std::string& secret) {
  if (secret.empty()) return grpc::Status::OK;
  // A worker without a secret sends an empty one.
  if (given.empty()) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                        "this coordinator needs the cluster secret; give "
                        "--secret_file with the coordinator's secret");
  }
  if (EqualSecrets(secret, {given.data(), given.size()}))
    return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                      "the cluster secret is not this coordinator's; give "
                      "--secret_file with the coordinator's secret");
}

}  // namespace maypole::coordinator
