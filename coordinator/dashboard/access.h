// DashboardAccess: who may view the dashboard, and who may act through it.
//
// Purpose: an operator authenticates with maypolectl and gets a link with a
// token, which a browser exchanges for a session. The token is valid once and
// for a short time, so it does no harm in a browser's history or a proxy's log;
// the session's key is only in a cookie.
//
//   std::string token = access.MakeToken(now, Right::kLook);  // in the link
//   std::optional<std::string> key = access.Redeem(now, token);
//   if (access.RightOf(now, key_of_the_cookie) >= Right::kLook) ...
//
// Thread contract: not synchronized; no clock. `random` makes keys that cannot
// be guessed.
//
// Invariants: at most kMaxTokens and kMaxDashboardSessions; the oldest are
// dropped.
#ifndef MAYPOLE_COORDINATOR_DASHBOARD_ACCESS_H_
#define MAYPOLE_COORDINATOR_DASHBOARD_ACCESS_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "coordinator/core/actions.h"

namespace maypole::coordinator {

inline constexpr std::chrono::minutes kTokenTime(5);
inline constexpr std::chrono::hours kSessionTime(12);
inline constexpr size_t kMaxTokens = 64;
inline constexpr size_t kMaxDashboardSessions = 256;

// Each right includes those before it.
enum class Right {
  kNone,
  kLook,
  kControl  // start and stop timelines
};

class DashboardAccess {
 public:
  explicit DashboardAccess(std::function<std::string()> random)
      : random_(std::move(random)) {}

  std::string MakeToken(Time now, Right right);
  // Returns the key of a new session with the token's right; nullopt if the
  // token is not, or no longer, valid.
  std::optional<std::string> Redeem(Time now, absl::string_view token);
  // kNone if there is no such session, or no longer.
  Right RightOf(Time now, absl::string_view key) const;

 private:
  struct Entry {
    std::string key;
    Time until{};
    Right right = Right::kNone;
  };
  // The oldest first.
  using Entries = std::deque<Entry>;
  std::string Add(Time until, Right right, size_t most, Entries* entries);
  static Entries::const_iterator Find(Time now, absl::string_view key,
                                      const Entries& entries);

  const std::function<std::string()> random_;
  Entries tokens_;
  Entries sessions_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_DASHBOARD_ACCESS_H_
