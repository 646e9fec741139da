#include "tests/simulation/parts/transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::simulation {

SimulatedTransport::SimulatedTransport(Stage* stage, Coordinator* coordinator,
                                       int node, proto::ExecutorHello hello,
                                       int64_t connect_timeout,
                                       worker::TransportCallbacks callbacks)
    : stage_(stage),
      coordinator_(coordinator),
      node_(node),
      connect_timeout_(connect_timeout),
      callbacks_(std::move(callbacks)),
      session_(std::move(hello)) {}

void SimulatedTransport::Start() {
  deadline_ = stage_->scheduler.now() + connect_timeout_;
  pause_ = worker::kReconnectFirstMs * kMillisecond;
  Open();
}

void SimulatedTransport::Open() {
  if (over_) return;
  stream_ = coordinator_->Connect(node_, weak_from_this());
  coordinator_->Write(stream_, session_.Hello());
}

uint64_t SimulatedTransport::Send(proto::ExecutorMessage message) {
  if (over_) return 0;
  uint64_t sequence = 0;
  for (proto::ExecutorMessage& part : session_.PartsOf(std::move(message))) {
    const proto::ExecutorMessage* numbered = session_.Push(std::move(part));
    if (session_.overflowed()) {
      stage_->Found("node ", node_, ": ", worker::kMaxUnacknowledged,
                    " messages to the coordinator are not acknowledged");
    }
    if (session_.too_long() > 0) {
      stage_->Found("node ", node_, ": a message of ", session_.too_long(),
                    " bytes to the coordinator");
    }
    if (numbered == nullptr) return 0;
    sequence = numbered->sequence();
    if (up_) coordinator_->Write(stream_, *numbered);
  }
  return sequence;
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
  worker::CoordinatorSession::Messages ready;
  const bool allowed = session_.OnReceived(message, &ready);
  Acknowledge();
  if (!allowed || message.has_refused()) {
    return Lose(absl::UnavailableError(absl::StrCat(
        "coordinator sim:1 lost: ", message.has_refused()
                                        ? message.refused().message()
                                        : "its messages are out of order")));
  }
  Acknowledged(session_.acknowledged());
  for (const auto& m : ready) callbacks_.on_message(m);
}

void SimulatedTransport::TakeRelayed(const std::string& incarnation,
                                     proto::CoordinatorMessage message) {
  if (over_) return;
  ++stage_->counts.relayed;
  worker::CoordinatorSession::Messages ready;
  session_.OnRelayed(incarnation, std::move(message), &ready);
  if (up_) Acknowledge();
  Acknowledged(session_.acknowledged());
  for (const auto& m : ready) callbacks_.on_message(m);
}

void SimulatedTransport::Acknowledge() {
  if (session_.AckUrgent()) coordinator_->Write(stream_, session_.Ack());
  if (!session_.AckDue() || std::exchange(ack_planned_, true)) return;
  stage_->scheduler.After(
      worker::kAckPause / std::chrono::milliseconds(1) * kMillisecond,
      weak_from_this(), [this] {
        ack_planned_ = false;
        if (up_ && !over_ && session_.AckDue()) {
          coordinator_->Write(stream_, session_.Ack());
        }
      });
}

void SimulatedTransport::Welcomed(const proto::CoordinatorMessage& first) {
  using Welcome = worker::CoordinatorSession::Welcome;
  const absl::StatusOr<Welcome> welcome = session_.OnWelcome(first, "sim:1");
  if (!welcome.ok() && MayPass(welcome.status())) {
    coordinator_->Drop(stream_);
    return Again(welcome.status());
  }
  if (!welcome.ok()) return Lose(welcome.status());
  up_ = true;
  session_.Resend([this](const proto::ExecutorMessage& m) {
    coordinator_->Write(stream_, m);
  });
  if (*welcome == Welcome::kReplaced) {
    acknowledged_ = 0;
    ++stage_->counts.replaced;
    return callbacks_.on_replaced();
  }
  if (*welcome == Welcome::kResumed) callbacks_.on_reconnected();
  Acknowledged(first.acknowledged());
}

void SimulatedTransport::Acknowledged(uint64_t sequence) {
  if (sequence <= acknowledged_) return;
  acknowledged_ = sequence;
  callbacks_.on_acknowledged(sequence);
}

void SimulatedTransport::OnStreamEnded(const absl::Status& status) {
  if (over_) return;
  session_.OnStreamEnded();
  const bool broke = std::exchange(up_, false);
  if (broke) pause_ = worker::kReconnectFirstMs * kMillisecond;
  if (worker::IsRefusal(status.code()) && !MayPass(status)) {
    return Lose(absl::Status(
        status.code(), absl::StrCat("coordinator sim:1: ", status.message())));
  }
  const std::string why =
      status.ok() ? "it has ended the stream" : std::string(status.message());
  if (broke) {
    callbacks_.on_away(
        absl::UnavailableError(absl::StrCat("coordinator sim:1 lost: ", why)));
  }
  Again(absl::UnavailableError(absl::StrCat(
      "cannot reach the coordinator at sim:1: ", why, " (tried)")));
}

void SimulatedTransport::Again(const absl::Status& last) {
  if (!session_.reached() && stage_->scheduler.now() >= deadline_) {
    return Lose(last);
  }
  stage_->scheduler.After(stage_->random.Between(pause_ / 2, pause_),
                          weak_from_this(), [this] { Open(); });
  pause_ = std::min(pause_ * 2, worker::kReconnectMostMs * kMillisecond);
}

bool SimulatedTransport::MayPass(const absl::Status& refusal) const {
  return refusal.code() == absl::StatusCode::kAlreadyExists &&
         !session_.reached() && stage_->scheduler.now() < deadline_;
}

void SimulatedTransport::Lose(const absl::Status& status) {
  over_ = true;
  coordinator_->Drop(stream_);
  callbacks_.on_lost(status);
}

}  // namespace maypole::simulation
