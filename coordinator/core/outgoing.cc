#include "coordinator/core/outgoing.h"

#include <tuple>
#include <utility>

namespace maypole::coordinator {
namespace {

// The numbers of the first and last decision in the message; 0: it has none.
std::pair<uint64_t, uint64_t> DecisionsIn(const proto::CoordinatorMessage& m) {
  switch (m.payload_case()) {
    case proto::CoordinatorMessage::kExecute: {
      const auto& runs = m.execute().runs();
      if (runs.empty()) return {0, 0};
      return {runs.Get(0).decision(), runs.Get(runs.size() - 1).decision()};
    }
    case proto::CoordinatorMessage::kOperationFailed:
      return {m.operation_failed().decision(), m.operation_failed().decision()};
    case proto::CoordinatorMessage::kSetReply:
      return {m.set_reply().decision(), m.set_reply().decision()};
    case proto::CoordinatorMessage::kJoinReply:
      return {m.join_reply().decision(), m.join_reply().decision()};
    default:
      return {0, 0};
  }
}

}  // namespace

Outgoing::Outgoing(const proto::CoordinatorMessage& message)
    : sequence_(message.sequence()),
      acknowledged_(message.acknowledged()),
      epoch_(message.epoch()),
      is_welcome_(message.has_welcome()) {
  if (message.payload_case() == proto::CoordinatorMessage::PAYLOAD_NOT_SET) {
    return;
  }
  std::tie(first_decision_, last_decision_) = DecisionsIn(message);
  // The message still has its numbers; Head()'s come first, so they must not be
  // here.
  if (sequence_ == 0 && acknowledged_ == 0 && epoch_ == 0) {
    body_ = std::make_shared<const std::string>(message.SerializeAsString());
    return;
  }
  proto::CoordinatorMessage payload = message;
  payload.clear_sequence();
  payload.clear_acknowledged();
  payload.clear_epoch();
  body_ = std::make_shared<const std::string>(payload.SerializeAsString());
}

Outgoing Outgoing::With(const proto::CoordinatorMessage& own) const {
  Outgoing out = *this;
  out.own_ = own.SerializeAsString();
  return out;
}

std::string Outgoing::Head() const {
  proto::CoordinatorMessage numbers;
  numbers.set_sequence(sequence_);
  numbers.set_acknowledged(acknowledged_);
  numbers.set_epoch(epoch_);
  numbers.set_settled(settled_);
  std::string head = numbers.SerializeAsString();
  head += own_;
  return head;
}

proto::CoordinatorMessage Outgoing::ToMessage() const {
  proto::CoordinatorMessage message;
  message.ParseFromString(body_ == nullptr ? Head() : Head() + *body_);
  return message;
}

}  // namespace maypole::coordinator
