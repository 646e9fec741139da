#include "coordinator/service/credentials.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/program/job_ticket.h"
#include "common/program/secret.h"
#include "common/program/tls.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

constexpr char kGiveSecret[] =
    "give --secret_file with the coordinator's secret";
constexpr char kGiveOperators[] =
    "give maypolectl --operator_secret_file with the coordinator's operator "
    "secret";

grpc::Status Unauthenticated(const std::string& text) {
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, text);
}

grpc::Status Denied(const std::string& text) {
  return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, text);
}

}  // namespace

Credentials::Credentials(std::string cluster, std::string operators)
    : cluster_(std::move(cluster)), operators_(std::move(operators)) {}

Credentials::Kind Credentials::KindOf(absl::string_view shown,
                                      std::string* job) const {
  // An agent without a secret shows an empty one.
  if (shown.empty()) return Kind::kNone;
  const std::string_view given(shown.data(), shown.size());
  if (EqualSecrets(cluster_, given)) return Kind::kCluster;
  if (EqualSecrets(operators_, given)) return Kind::kOperators;
  const auto of_job = JobOfTicket(given, cluster_);
  if (!of_job) return Kind::kUnknown;
  *job = *of_job;
  return Kind::kTicket;
}

grpc::Status Credentials::CheckStranger(absl::string_view shown) const {
  std::string job;
  const Kind kind = KindOf(shown, &job);
  if (kind != Kind::kNone && kind != Kind::kUnknown) return grpc::Status::OK;
  const std::string give =
      operators_.empty()
          ? kGiveSecret
          : absl::StrCat(kGiveSecret, "; an operator: ", kGiveOperators);
  if (kind == Kind::kNone) {
    return Unauthenticated(
        absl::StrCat("this coordinator needs the cluster secret; ", give));
  }
  return Unauthenticated(
      absl::StrCat("the cluster secret is not this coordinator's; ", give));
}

grpc::Status Credentials::Check(Role role, absl::string_view shown,
                                std::string* only_job) const {
  only_job->clear();
  const bool own = role == Role::kAdmin && !operators_.empty();
  if (!own && cluster_.empty()) return grpc::Status::OK;
  std::string job;
  switch (KindOf(shown, &job)) {
    case Kind::kCluster:
      if (!own) return grpc::Status::OK;
      return Denied(absl::StrCat(
          "this is the cluster secret, which is for agents; ", kGiveOperators));
    case Kind::kOperators:
      if (role == Role::kAdmin) return grpc::Status::OK;
      return Denied(
          "this is the operator secret, with which nobody joins a job; give "
          "maypole-worker --secret_file with the coordinator's secret");
    case Kind::kTicket:
      if (role == Role::kAdmin) {
        return Denied(absl::StrCat("this is the ticket of job '", job,
                                   "', which is for the job's executors; ",
                                   own ? kGiveOperators : kGiveSecret));
      }
      *only_job = job;
      return grpc::Status::OK;
    case Kind::kNone:
      if (!own) return CheckStranger(shown);
      return Unauthenticated(absl::StrCat(
          "this coordinator needs the operator secret; ", kGiveOperators));
    case Kind::kUnknown:
      break;
  }
  if (!own) return CheckStranger(shown);
  return Unauthenticated(absl::StrCat(
      "the operator secret is not this coordinator's; ", kGiveOperators));
}

absl::Status CheckJob(const std::string& only_job, const std::string& job) {
  if (only_job.empty() || only_job == job) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "this is the ticket of job '", only_job, "', not of job ", Quoted(job),
      ": an executor may join only the job for which its agent has started "
      "it"));
}

grpc::Status CheckRole(Role role, bool authenticated,
                       const std::string& common_name) {
  if (!authenticated || role != Role::kAdmin || common_name == kAdminName) {
    return grpc::Status::OK;
  }
  return Denied(
      absl::StrCat("only a certificate with the name ", kAdminName,
                   " may do this, the caller's has the name ",
                   LogValue(Cut(common_name, kMaxHostBytes)),
                   "; give an operator's with --tls_cert and --tls_key"));
}

}  // namespace maypole::coordinator
