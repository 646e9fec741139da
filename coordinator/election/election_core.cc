#include "coordinator/election/election_core.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::coordinator {
namespace {

// Parts of the time to live. A leader whose store has a dead member has time
// to ask each of three members before its lease ends.
constexpr int kRenewPart = 3;       // renew after a third
constexpr int kLookPart = 3;        // followers look, even without a notice
constexpr int kLeaderCallPart = 6;  // how long a call may take
constexpr int kCallPart = 2;        // of a follower or candidate
constexpr int kRetryPart = 20;      // the pause after a failed call
// For clocks of different speed, and for a thread that is preempted between
// its check and its write.
constexpr int kMarginPart = 10;

double Seconds(BootInstant time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void ElectionCore::Answered(BootInstant now, const StoreAnswer& answer,
                            ElectionActions* actions) {
  const Kind kind = called_.value_or(Kind::kLook);
  called_.reset();
  if (Over(now, actions)) return;
  if (const auto* failed = std::get_if<CallFailed>(&answer)) {
    Failed(now, kind, failed->text, actions);
    return Act(now, actions);
  }
  if (!failure_.empty()) {
    failure_.clear();
    actions->emplace_back(StoreAnswers{});
  }
  if (const auto* seen = std::get_if<Seen>(&answer)) {
    if (kind == Kind::kClaim) {
      LeadOrFollow(now, *seen, actions);
    } else {
      SawHolder(now, *seen, actions);
    }
  } else if (const auto* granted = std::get_if<LeaseGranted>(&answer)) {
    lease_ = granted->lease;
    until_ = Until(granted->ttl);
    next_ = now;
  } else if (const auto* renewed = std::get_if<LeaseRenewed>(&answer)) {
    if (renewed->ttl <= BootInstant::zero()) {
      return End("the store has ended its lease", actions);
    }
    until_ = std::max(until_, Until(renewed->ttl));
    next_ = called_at_ + ttl_ / kRenewPart;
    actions->emplace_back(Prolong{until_});
  } else {
    unwanted_ = 0;
    next_ = now + ttl_ / kLookPart;
  }
  Act(now, actions);
}

void ElectionCore::Changed(BootInstant now, ElectionActions* actions) {
  if (Over(now, actions)) return;
  look_ = true;
  Act(now, actions);
}

void ElectionCore::Passed(BootInstant now, ElectionActions* actions) {
  if (Over(now, actions)) return;
  Act(now, actions);
}

LeaseId ElectionCore::Resign() {
  state_ = State::kOver;
  return std::exchange(lease_, 0);
}

std::optional<BootInstant> ElectionCore::Deadline() const {
  if (state_ == State::kOver) return std::nullopt;
  std::optional<BootInstant> first;
  if (!called_) first = next_;
  if (state_ == State::kLeader) {
    first = first ? std::min(*first, until_) : until_;
  }
  return first;
}

bool ElectionCore::Over(BootInstant now, ElectionActions* actions) {
  if (state_ == State::kLeader && now >= until_) {
    End(absl::StrCat("its lease was not renewed in time (it ended ",
                     Seconds(now - until_), " s ago",
                     failure_.empty() ? "" : "; the last error was: ", failure_,
                     ")"),
        actions);
  }
  return state_ == State::kOver;
}

void ElectionCore::Act(BootInstant now, ElectionActions* actions) {
  if (called_) return;
  if (state_ == State::kCandidate && lease_ != 0 && now >= until_) {
    // Its claim has not been answered in time.
    unwanted_ = lease_;
    BecomeFollower(now, std::nullopt, actions);
  }
  const bool look_now = look_ && failure_.empty();
  if (now < next_ && !look_now) return;
  Call(NextCall(now), now, actions);
}

StoreCall::Kind ElectionCore::NextCall(BootInstant now) const {
  switch (state_) {
    case State::kLeader:
      return now < next_ ? Kind::kLook : Kind::kRenew;
    case State::kCandidate:
      return lease_ == 0 ? Kind::kGrant : Kind::kClaim;
    default:
      return unwanted_ != 0 ? Kind::kRevoke : Kind::kLook;
  }
}

void ElectionCore::Call(Kind kind, BootInstant now, ElectionActions* actions) {
  if (kind == Kind::kLook) look_ = false;
  called_ = kind;
  called_at_ = now;
  StoreCall call{kind, kind == Kind::kRevoke ? unwanted_ : lease_,
                 ttl_ / kCallPart};
  // So that a leader that waits for an answer steps down in time.
  if (state_ == State::kLeader) {
    call.timeout = std::min(ttl_ / kLeaderCallPart, until_ - now);
  }
  actions->emplace_back(call);
}

void ElectionCore::Failed(BootInstant now, Kind kind, const std::string& text,
                          ElectionActions* actions) {
  if (failure_.empty()) actions->emplace_back(StoreFailed{text});
  failure_ = text.empty() ? "unknown" : text;
  next_ = now + ttl_ / kRetryPart;
  if (kind == Kind::kLook) look_ = true;
  if (kind == Kind::kGrant) state_ = State::kFollower;
  if (kind == Kind::kRevoke) unwanted_ = 0;  // it ends by itself
}

void ElectionCore::SawHolder(BootInstant now, const Seen& seen,
                             ElectionActions* actions) {
  if (state_ == State::kLeader) {
    if (seen.holder && seen.holder->lease == lease_) return;
    return End(seen.holder ? absl::StrCat("another coordinator holds the key: ",
                                          seen.holder->value)
                           : "its key was deleted from the store",
               actions);
  }
  if (seen.holder) return BecomeFollower(now, seen.holder, actions);
  TellFollow(std::nullopt, actions);
  state_ = State::kCandidate;
  next_ = now;
}

void ElectionCore::LeadOrFollow(BootInstant now, const Seen& seen,
                                ElectionActions* actions) {
  if (!seen.holder || seen.holder->lease != lease_ || now >= until_) {
    unwanted_ = std::exchange(lease_, 0);
    return BecomeFollower(now, seen.holder, actions);
  }
  state_ = State::kLeader;
  next_ = called_at_ + ttl_ / kRenewPart;
  holder_ = seen.holder;
  actions->emplace_back(Lead{seen.holder->term, until_});
}

void ElectionCore::BecomeFollower(BootInstant now,
                                  const std::optional<Holder>& holder,
                                  ElectionActions* actions) {
  state_ = State::kFollower;
  lease_ = 0;
  next_ = now + (unwanted_ != 0 ? BootInstant::zero() : ttl_ / kLookPart);
  TellFollow(holder, actions);
}

void ElectionCore::TellFollow(const std::optional<Holder>& holder,
                              ElectionActions* actions) {
  if (told_ && holder_ == holder) return;
  told_ = true;
  holder_ = holder;
  actions->emplace_back(Follow{holder});
}

void ElectionCore::End(std::string reason, ElectionActions* actions) {
  state_ = State::kOver;
  actions->emplace_back(StepDown{std::move(reason)});
}

BootInstant ElectionCore::Until(BootInstant ttl) const {
  return called_at_ + ttl - ttl / kMarginPart;
}

}  // namespace maypole::coordinator
