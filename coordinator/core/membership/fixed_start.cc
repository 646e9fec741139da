#include "coordinator/core/membership/fixed_start.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

void FixedStart::SetReady(Time now, NodeMember member, uint32_t size) {
  nodes_.Info("ranks_ready", " node=", member.node, " host=", member.host,
              " ranks=", LogValue(RanksText(member.ranks)), " size=", size);
  if (failure_ && failure_->told.insert(member.session).second) {
    return nodes_.SendRefusal(member.session, {}, failure_->code,
                              failure_->message);
  }
  failure_.reset();
  // Ready again: the node's failed start and its failure here have crossed.
  gathering_.Remove(member.session);
  if (!since_) since_ = now;
  absl::Status status = gathering_.Add(std::move(member), size);
  if (!status.ok()) Fail(std::string(status.message()), 0);
}

void FixedStart::SetWaiting(Time now, NodeMember member, uint32_t size) {
  const SessionId session = member.session;
  gathering_.SetWaiting(std::move(member), size);
  // Ranks that are late for a failed start learn of its failure when all ranks
  // of the node are there.
  if (failure_ && !failure_->told.contains(session)) return;
  failure_.reset();
  if (!since_) since_ = now;
}

void FixedStart::Remove(SessionId session) {
  gathering_.Remove(session);
  if (gathering_.empty()) since_.reset();
}

void FixedStart::Lose(SessionId session, const std::string& how) {
  if (failure_) {
    failure_->told.erase(session);
    if (failure_->told.empty()) failure_.reset();
  }
  if (const NodeMember* member = gathering_.Find(session)) {
    const std::string who = member->ExecutorText();
    gathering_.Remove(session);
    nodes_.Count(ErrorKind::kExecutorLost);
    Fail(absl::StrCat("the job cannot start: ", who, " ", how), 0);
  }
  gathering_.Lose(session, how);
  if (gathering_.empty()) since_.reset();
}

void FixedStart::Fail(const std::string& message, SessionId reporter,
                      absl::StatusCode code) {
  nodes_.Warn("start_failed", " reason=", LogValue(message));
  failure_ = Failure{code, message, {}};
  for (const NodeMember& member : gathering_.members()) {
    failure_->told.insert(member.session);
    if (member.session == reporter) continue;
    nodes_.SendRefusal(member.session, {}, code, message);
  }
  // If no node was told, no node would start again and reset it.
  if (failure_->told.empty()) failure_.reset();
  gathering_.Clear();
  since_.reset();
}

void FixedStart::Stop(const std::string& message) {
  gathering_.TakeWaitingIn();
  if (!gathering_.empty()) Fail(message, 0);
}

std::optional<Time> FixedStart::Deadline() const {
  if (!since_) return std::nullopt;
  return *since_ + gathering_.StartTimeout(timeout_);
}

void FixedStart::TimeOut(const std::string& running) {
  nodes_.Count(ErrorKind::kStartTimeout);
  const std::string message =
      absl::StrCat("the job did not start within ",
                   SecondsText(gathering_.StartTimeout(timeout_)), ": ",
                   running.empty() ? gathering_.MissingText() : running);
  gathering_.TakeWaitingIn();
  Fail(message, 0, absl::StatusCode::kDeadlineExceeded);
}

std::vector<NodeMember> FixedStart::Take() {
  since_.reset();
  return gathering_.Take();
}

}  // namespace maypole::coordinator
