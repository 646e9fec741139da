#include "coordinator/service/refusals.h"

#include "absl/strings/str_cat.h"
#include "common/log_value.h"
#include "coordinator/service/peer.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

constexpr char kOthers[] = "others";

Time Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

void Write(const Refusals::Lines& lines) {
  for (const std::string& line : lines) spdlog::warn(line);
}

}  // namespace

void Refusals::Report(const std::string& peer, const std::string& reason) {
  Write(Report(Now(), peer, reason));
}

void Refusals::Flush() { Write(Flush(Now())); }

Refusals::Lines Refusals::Report(Time now, const std::string& peer,
                                 const std::string& reason) {
  std::string address = PeerAddress(peer);
  std::lock_guard lock(mutex_);
  if (refused_.size() >= kMaxRefusedPeers && !refused_.contains(address)) {
    address = kOthers;
  }
  const auto [it, is_new] = refused_.try_emplace(address);
  Refused& refused = it->second;
  refused.line = absl::StrCat("event=unauthenticated peer=", peer,
                              " reason=", LogValue(reason));
  if (!is_new) {
    ++refused.more;
    return {};
  }
  refused.said = now;
  return {refused.line};
}

Refusals::Lines Refusals::Flush(Time now) {
  Lines lines;
  std::lock_guard lock(mutex_);
  for (auto it = refused_.begin(); it != refused_.end();) {
    Refused& refused = it->second;
    if (now - refused.said < kRefusalPause) {
      ++it;
    } else if (refused.more == 0) {
      it = refused_.erase(it);
    } else {
      lines.push_back(absl::StrCat(refused.line, " more=", refused.more));
      refused.more = 0;
      refused.said = now;
      ++it;
    }
  }
  return lines;
}

}  // namespace maypole::coordinator
