#include "coordinator/service/secret.h"

#include "absl/strings/string_view.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

grpc::Status CheckSecret(const grpc::ServerContext& context,
                         const std::string& secret) {
  if (secret.empty()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kSecretMetadata);
  if (it == metadata.end()) {
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                        "this coordinator wants the cluster secret; give "
                        "--secret_file with the coordinator's secret");
  }
  const absl::string_view given(it->second.data(), it->second.size());
  if (EqualSecrets(secret, given)) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                      "the cluster secret is not this coordinator's; give "
                      "--secret_file with the coordinator's secret");
}

}  // namespace maypole::coordinator
