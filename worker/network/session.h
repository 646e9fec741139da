// CoordinatorSession: an executor's session with the coordinator, over all its
// streams; a pure state machine.
//
// Purpose: the rules of proto/coordinator.proto's first paragraphs for the
// executor's end: what the first message of a stream is, what the coordinator's
// answer to it means, which messages are sent again.
//
//   CoordinatorSession session(hello);
//   stream.Write(session.Hello());                    // on each new stream
//   absl::StatusOr<Welcome> welcome = session.OnWelcome(first, "host:1");
//   session.Resend([&](const ExecutorMessage& m) { stream.Write(m); });
//   for (ExecutorMessage& part : session.PartsOf(std::move(message))) {
//     if (const ExecutorMessage* m = session.Push(std::move(part))) ...
//   }
//
//   answer of the coordinator         means
//   Welcome, the first one            kOpened
//   Welcome, same incarnation         kResumed
//   Welcome, another incarnation      kReplaced: numbers begin anew, and until
//                                     the owner sends NodeState, what it sends
//                                     is dropped (it was said to the one
//                                     before)
//
// Thread contract: not synchronized.
//
// Messages may come by way of other executors, too (docs/relays.md), earlier or
// later than those of the stream; they are handled in the order of their
// numbers, each once.
//
// Invariants: at most kMaxUnacknowledged messages are kept in each direction.
// If there were more while no stream was open, the session can no longer be
// resumed, but the coordinator can still be replaced.
#ifndef MAYPOLE_WORKER_NETWORK_SESSION_H_
#define MAYPOLE_WORKER_NETWORK_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wire/link.h"
#include "proto/coordinator.pb.h"
#include "worker/core/limits.h"

namespace maypole::worker {

// Codes with which a coordinator refuses; trying again does not help.
bool IsRefusal(absl::StatusCode code);

class CoordinatorSession {
 public:
  enum class Welcome { kOpened, kResumed, kReplaced };

  explicit CoordinatorSession(proto::ExecutorHello hello)
      : hello_(std::move(hello)) {}

  // The first message of a stream.
  proto::ExecutorMessage Hello();
  // The coordinator's first message on a stream. An error is final. `address`
  // is the coordinator's, for messages.
  absl::StatusOr<Welcome> OnWelcome(const proto::CoordinatorMessage& first,
                                    absl::string_view address);
  // The message as Push() must get it: a long NodeState in parts, if the
  // coordinator knows them.
  std::vector<proto::ExecutorMessage> PartsOf(
      proto::ExecutorMessage message) const;
  // Numbers the message. Returns null if it is not to be sent: see above,
  // overflowed() or too_long().
  const proto::ExecutorMessage* Push(proto::ExecutorMessage message);
  // The coordinator does not acknowledge messages, although a stream is open.
  bool overflowed() const { return overflowed_; }
  // The bytes of a message that the coordinator would refuse, so that it would
  // be sent again for ever; 0: there was none.
  size_t too_long() const { return too_long_; }
  // The stream has ended.
  void OnStreamEnded() { up_ = false; }

  template <typename Send>
  void Resend(Send&& send) {
    link_.Resend(std::forward<Send>(send));
  }
  using Messages = std::vector<proto::CoordinatorMessage>;
  // Takes a message of the stream. Appends to *ready what must be handled now.
  // Returns false if the coordinator violates the protocol.
  bool OnReceived(proto::CoordinatorMessage message, Messages* ready);
  // Takes a message that another executor has passed on.
  void OnRelayed(absl::string_view incarnation,
                 proto::CoordinatorMessage message, Messages* ready);
  // The coordinator has received all messages up to this one.
  uint64_t acknowledged() const { return link_.acknowledged(); }
  // An Ack() must be sent at once, or kAckPause after AckDue() has become true.
  bool AckUrgent() const { return link_.untold() >= kAckEvery; }
  bool AckDue() const { return link_.AckDue(); }
  proto::ExecutorMessage Ack() { return link_.Bare({}); }

  // There has been a Welcome.
  bool reached() const { return !session_.empty(); }
  const std::string& incarnation() const { return incarnation_; }

 private:
  const proto::ExecutorHello hello_;
  Link<proto::ExecutorMessage> link_{kMaxUnacknowledged};
  std::string session_;  // empty before the first Welcome
  std::string incarnation_;
  bool up_ = false;
  bool owes_state_ = false;  // the next message must be NodeState
  bool incomplete_ = false;  // messages were dropped while no stream was open
  bool overflowed_ = false;
  size_t too_long_ = 0;
  // By number: received before one with a smaller number.
  std::map<uint64_t, proto::CoordinatorMessage> early_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_SESSION_H_
