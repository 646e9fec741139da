#include "coordinator/dashboard/access.h"

#include <algorithm>

#include "common/program/secret.h"

namespace maypole::coordinator {

std::string DashboardAccess::Add(Time until, Right right, size_t most,
                                 Entries* entries) {
  if (entries->size() >= most) entries->pop_front();
  entries->push_back({random_(), until, right});
  return entries->back().key;
}

DashboardAccess::Entries::const_iterator DashboardAccess::Find(
    Time now, absl::string_view key, const Entries& entries) {
  return std::ranges::find_if(entries, [&](const Entry& e) {
    return now < e.until && EqualSecrets(e.key, std::string(key));
  });
}

std::string DashboardAccess::MakeToken(Time now, Right right) {
  return Add(now + kTokenTime, right, kMaxTokens, &tokens_);
}

std::optional<std::string> DashboardAccess::Redeem(Time now,
                                                   absl::string_view token) {
  const auto found = Find(now, token, tokens_);
  if (found == tokens_.end()) return std::nullopt;
  const Right right = found->right;
  tokens_.erase(found);
  return Add(now + kSessionTime, right, kMaxDashboardSessions, &sessions_);
}

Right DashboardAccess::RightOf(Time now, absl::string_view key) const {
  const auto found = Find(now, key, sessions_);
  return found == sessions_.end() ? Right::kNone : found->right;
}

}  // namespace maypole::coordinator
