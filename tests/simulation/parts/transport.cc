#include "tests/simulation/parts/transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

// Codes with which a coordinator refuses permanently; retrying does not help.
bool IsRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kUnauthenticated ||
         code == absl::StatusCode::kPermissionDenied ||
         code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kUnimplemented ||
         code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kAlreadyExists;
}

}  // namespace

SimulatedTransport::SimulatedTransport(Stage* stage, Coordinator* coordinator,
                                       int node, proto::ExecutorHello hello,
                                       int64_t resume_timeout,
                                       worker::TransportCallbacks callbacks)
    : stage_(stage),
      coordinator_(coordinator),
      node_(node),
      hello_(std::move(hello)),
      resume_timeout_(resume_timeout),
      callbacks_(std::move(callbacks)) {}

void SimulatedTransport::Start() {
  deadline_ = stage_->scheduler.now() + resume_timeout_;
  pause_ = worker::kReconnectFirstMs * kMillisecond;
  Open();
}

void SimulatedTransport::Open() {
  if (over_) return;
  stream_ = coordinator_->Connect(node_, weak_from_this());
  proto::ExecutorMessage hello;
  *hello.mutable_hello() = hello_;
  hello.mutable_hello()->set_session(session_);
  hello.mutable_hello()->set_incarnation(incarnation_);
  coordinator_->Write(stream_, link_.Bare(std::move(hello)));
}

uint64_t SimulatedTransport::Send(proto::ExecutorMessage message) {
  if (over_) return 0;
  const proto::ExecutorMessage* numbered = link_.Push(std::move(message));
  if (numbered == nullptr) {
    stage_->Found("node ", node_, ": ", worker::kMaxUnacknowledged,
                  " messages to the coordinator are not acknowledged");
    return 0;
  }
  if (up_) coordinator_->Write(stream_, *numbered);
  return numbered->sequence();
}

void SimulatedTransport::Close() {
  if (std::exchange(over_, true)) return;
  if (stream_ != nullptr) coordinator_->Finish(stream_);
}

void SimulatedTransport::Die() {
  over_ = true;
  if (stream_ != nullptr) coordinator_->Drop(stream_);
}

void SimulatedTransport::OnStreamMessage(
    const proto::CoordinatorMessage& message) {
  if (over_) return;
  if (!up_) return Welcomed(message);
  const Receipt receipt =
      link_.OnReceived(message.sequence(), message.acknowledged());
  if (link_.AckDue()) coordinator_->Write(stream_, link_.Bare({}));
  if (receipt == Receipt::kGap || receipt == Receipt::kBadAck ||
      message.has_refused()) {
    return Lose(absl::UnavailableError(absl::StrCat(
        "coordinator sim:1 lost: ", message.has_refused()
                                        ? message.refused().message()
                                        : "its messages are out of order")));
  }
  Acknowledged(message.acknowledged());
  if (receipt == Receipt::kNew) callbacks_.on_message(message);
}

void SimulatedTransport::Welcomed(const proto::CoordinatorMessage& first) {
  if (!first.has_welcome()) {
    return Lose(
        first.has_refused()
            ? absl::Status(
                  static_cast<absl::StatusCode>(first.refused().code()),
                  absl::StrCat("coordinator sim:1 has refused this node: ",
                               first.refused().message()))
            : absl::InternalError("coordinator sim:1 lost: its first message "
                                  "is not Welcome"));
  }
  const bool resumed = !session_.empty();
  session_ = first.welcome().session();
  incarnation_ = first.welcome().incarnation();
  link_.OnReceived(0, first.acknowledged());
  up_ = true;
  link_.Resend([this](const proto::ExecutorMessage& m) {
    coordinator_->Write(stream_, m);
  });
  if (resumed) callbacks_.on_reconnected();
  Acknowledged(first.acknowledged());
}

void SimulatedTransport::Acknowledged(uint64_t sequence) {
  if (sequence <= acknowledged_) return;
  acknowledged_ = sequence;
  callbacks_.on_acknowledged(sequence);
}

void SimulatedTransport::OnStreamEnded(const absl::Status& status) {
  if (over_) return;
  if (std::exchange(up_, false)) {
    deadline_ = stage_->scheduler.now() + resume_timeout_;
    pause_ = worker::kReconnectFirstMs * kMillisecond;
  }
  if (IsRefusal(status.code())) {
    return Lose(absl::Status(
        status.code(), absl::StrCat("coordinator sim:1: ", status.message())));
  }
  Again(status.ok() ? absl::UnavailableError("it has ended the stream")
                    : status);
}

void SimulatedTransport::Again(const absl::Status& last) {
  if (stage_->scheduler.now() >= deadline_) return Lose(LostStatus(last));
  stage_->scheduler.After(pause_, weak_from_this(), [this] { Open(); });
  pause_ = std::min(pause_ * 2, worker::kReconnectMostMs * kMillisecond);
}

void SimulatedTransport::Lose(const absl::Status& status) {
  over_ = true;
  coordinator_->Drop(stream_);
  callbacks_.on_lost(status);
}

absl::Status SimulatedTransport::LostStatus(const absl::Status& last) const {
  const bool reached = !session_.empty();
  return absl::UnavailableError(absl::StrCat(
      reached ? "coordinator sim:1 lost: "
              : "cannot reach the coordinator at sim:1: ",
      std::string(last.message()), reached ? " (tried again)" : " (tried)"));
}

}  // namespace maypole::simulation
