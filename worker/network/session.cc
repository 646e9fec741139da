#include "worker/network/session.h"

#include "absl/strings/str_cat.h"

namespace maypole::worker {

bool IsRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kUnauthenticated ||
         code == absl::StatusCode::kPermissionDenied ||
         code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kUnimplemented ||
         code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kAlreadyExists;
}

proto::ExecutorMessage CoordinatorSession::Hello() {
  proto::ExecutorMessage message;
  *message.mutable_hello() = hello_;
  message.mutable_hello()->set_session(session_);
  message.mutable_hello()->set_incarnation(incarnation_);
  return link_.Bare(std::move(message));
}

absl::StatusOr<CoordinatorSession::Welcome> CoordinatorSession::OnWelcome(
    const proto::CoordinatorMessage& first, absl::string_view address) {
  if (first.has_refused()) {
    return absl::Status(
        static_cast<absl::StatusCode>(first.refused().code()),
        absl::StrCat("coordinator ", address,
                     " has refused this node: ", first.refused().message()));
  }
  if (!first.has_welcome()) {
    return absl::InternalError(absl::StrCat(
        "coordinator ", address, " lost: its first message is not Welcome"));
  }
  const bool opened = session_.empty();
  const bool replaced =
      !opened && first.welcome().incarnation() != incarnation_;
  if (!replaced && incomplete_) {
    return absl::UnavailableError(absl::StrCat(
        "coordinator ", address,
        " lost: it was away for so long that messages to it were dropped"));
  }
  session_ = first.welcome().session();
  incarnation_ = first.welcome().incarnation();
  up_ = true;
  if (replaced) {
    link_.Reset();
    early_.clear();
    owes_state_ = true;
    incomplete_ = false;
    return Welcome::kReplaced;
  }
  link_.OnReceived(0, first.acknowledged());
  return opened ? Welcome::kOpened : Welcome::kResumed;
}

bool CoordinatorSession::OnReceived(proto::CoordinatorMessage message,
                                    Messages* ready) {
  const uint64_t sequence = message.sequence();
  switch (link_.OnReceived(sequence, message.acknowledged())) {
    case Receipt::kBadAck:
      return false;
    case Receipt::kDuplicate:
      return true;
    case Receipt::kUnnumbered:
      if (message.has_relayed()) ready->push_back(std::move(message));
      return true;
    case Receipt::kGap:
      if (early_.size() >= kMaxUnacknowledged) return false;
      // What it acknowledges does not depend on its place.
      link_.OnReceived(0, message.acknowledged());
      early_.emplace(sequence, std::move(message));
      return true;
    case Receipt::kNew:
      break;
  }
  ready->push_back(std::move(message));
  while (!early_.empty() && early_.begin()->first <= link_.received() + 1) {
    auto next = early_.extract(early_.begin());
    if (link_.OnReceived(next.key(), 0) == Receipt::kNew) {
      ready->push_back(std::move(next.mapped()));
    }
  }
  return true;
}

void CoordinatorSession::OnRelayed(absl::string_view incarnation,
                                   proto::CoordinatorMessage message,
                                   Messages* ready) {
  if (incarnation != incarnation_) return;
  static_cast<void>(OnReceived(std::move(message), ready));
}

std::vector<proto::ExecutorMessage> CoordinatorSession::PartsOf(
    proto::ExecutorMessage message) const {
  std::vector<proto::ExecutorMessage> parts;
  if (!message.has_node_state() ||
      message.node_state().ByteSizeLong() <= kNodeStatePieceBytes) {
    parts.push_back(std::move(message));
    return parts;
  }
  const std::string state = message.node_state().SerializeAsString();
  for (size_t at = 0; at < state.size(); at += kNodeStatePieceBytes) {
    proto::NodeStatePart* const part =
        parts.emplace_back().mutable_node_state_part();
    part->set_piece(state.substr(at, kNodeStatePieceBytes));
    part->set_last(at + kNodeStatePieceBytes >= state.size());
  }
  return parts;
}

const proto::ExecutorMessage* CoordinatorSession::Push(
    proto::ExecutorMessage message) {
  if (owes_state_ && !message.has_node_state() &&
      !message.has_node_state_part()) {
    return nullptr;
  }
  owes_state_ = false;
  // With its numbers it is a little longer.
  constexpr size_t kNumbers = 32;
  if (const size_t bytes = message.ByteSizeLong();
      bytes + kNumbers > kMaxExecutorMessageBytes) {
    too_long_ = bytes;
    return nullptr;
  }
  const proto::ExecutorMessage* numbered = link_.Push(std::move(message));
  if (numbered != nullptr) return numbered;
  if (up_ || session_.empty()) {
    overflowed_ = true;
  } else {
    incomplete_ = true;
  }
  return nullptr;
}

}  // namespace maypole::worker
