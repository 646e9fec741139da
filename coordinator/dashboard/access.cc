#include "coordinator/dashboard/access.h"

#include <algorithm>

#include "common/program/secret.h"

namespace maypole::coordinator {

std::string DashboardAccess::Add(Time until, size_t most, Entries* entries) {
  if (entries->size() >= most) entries->pop_front();
  entries->push_back({random_(), until});
  return entries->back().key;
}

DashboardAccess::Entries::const_iterator DashboardAccess::Find(
    Time now, absl::string_view key, const Entries& entries) {
  return std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
    return now < e.until && EqualSecrets(e.key, std::string(key));
  });
}

std::string DashboardAccess::MakeToken(Time now) {
  return Add(now + kTokenTime, kMaxTokens, &tokens_);
}

std::optional<std::string> DashboardAccess::Redeem(Time now,
                                                   absl::string_view token) {
  const auto found = Find(now, token, tokens_);
  if (found == tokens_.end()) return std::nullopt;
  tokens_.erase(found);
  return Add(now + kSessionTime, kMaxDashboardSessions, &sessions_);
}

bool DashboardAccess::Admits(Time now, absl::string_view key) const {
  return Find(now, key, sessions_) != sessions_.end();
}

}  // namespace maypole::coordinator
