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
    owes_state_ = true;
    incomplete_ = false;
    return Welcome::kReplaced;
  }
  link_.OnReceived(0, first.acknowledged());
  return opened ? Welcome::kOpened : Welcome::kResumed;
}

const proto::ExecutorMessage* CoordinatorSession::Push(
    proto::ExecutorMessage message) {
  if (owes_state_ && !message.has_node_state()) return nullptr;
  owes_state_ = false;
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
