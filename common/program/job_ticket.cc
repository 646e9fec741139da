#include "common/program/job_ticket.h"

#include "common/limits.h"
#include "common/name.h"
#include "common/program/derive.h"
#include "common/program/secret.h"

namespace maypole {
namespace {

constexpr std::string_view kForm = "ticket1.";
constexpr size_t kHexBytes = 64;

}  // namespace

std::string JobTicket(const std::string& secret, std::string_view job) {
  if (secret.empty()) return "";
  const std::string name(job);
  return std::string(kForm) + Derive(secret, "ticket of " + name) + "." + name;
}

std::optional<std::string> JobOfTicket(std::string_view ticket,
                                       const std::string& secret) {
  constexpr size_t kHead = kForm.size() + kHexBytes + 1;
  if (secret.empty() || ticket.size() <= kHead) return std::nullopt;
  const std::string_view job = ticket.substr(kHead);
  if (!CheckName("", job, kMaxJobBytes).ok() ||
      !EqualSecrets(JobTicket(secret, job), ticket)) {
    return std::nullopt;
  }
  return std::string(job);
}

}  // namespace maypole
