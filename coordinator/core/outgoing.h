// Outgoing: a message to an executor, already serialized.
//
// Purpose: most messages to the nodes of a job differ only in their numbers.
// Such a message is serialized once, and its copies share the bytes: with a
// thousand nodes, one Execute would otherwise be copied and serialized a
// thousand times.
//
//   Outgoing all(execute);                 // a proto::CoordinatorMessage
//   out->messages.emplace_back(a, all);    // no copy of the bytes
//   out->messages.emplace_back(b, all);
//
//   Outgoing start = all.With(own);        // merged with `all` by the receiver
//
// Protocol Buffers merge messages that follow one another: Head() + *Body() is
// the message. Head() has the numbers and what only this receiver gets.
//
// Thread contract: a value; the shared bytes do not change.
#ifndef MAYPOLE_COORDINATOR_CORE_OUTGOING_H_
#define MAYPOLE_COORDINATOR_CORE_OUTGOING_H_

#include <cstdint>
#include <memory>
#include <string>

#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Outgoing {
 public:
  using Bytes = std::shared_ptr<const std::string>;

  // A bare acknowledgement.
  Outgoing() = default;
  // Implicit, so that callers can pass a message directly.
  Outgoing(const proto::CoordinatorMessage& message);  // NOLINT

  // A copy to which fields of `own` are added. Both must have the same payload.
  Outgoing With(const proto::CoordinatorMessage& own) const;

  void set_sequence(uint64_t sequence) { sequence_ = sequence; }
  void set_acknowledged(uint64_t number) { acknowledged_ = number; }
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  // CoordinatorMessage.settled.
  void set_settled(uint64_t decision) { settled_ = decision; }
  uint64_t sequence() const { return sequence_; }
  uint64_t acknowledged() const { return acknowledged_; }
  bool IsBareAck() const { return body_ == nullptr; }
  // Only its numbers are its own, and it has a body.
  bool IsShared() const { return body_ != nullptr && own_.empty(); }
  bool is_welcome() const { return is_welcome_; }
  // The numbers of the first and last decision in it (see proto Decision); 0:
  // it has none.
  uint64_t first_decision() const { return first_decision_; }
  uint64_t last_decision() const { return last_decision_; }

  std::string Head() const;
  const Bytes& Body() const { return body_; }  // null: empty
  size_t ByteSize() const {
    return Head().size() + (body_ == nullptr ? 0 : body_->size());
  }

  // For tests and simulations: what the receiver reads.
  proto::CoordinatorMessage ToMessage() const;

 private:
  uint64_t sequence_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t epoch_ = 0;
  uint64_t settled_ = 0;
  uint64_t first_decision_ = 0;
  uint64_t last_decision_ = 0;
  bool is_welcome_ = false;
  Bytes body_;
  std::string own_;  // serialized
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_OUTGOING_H_
