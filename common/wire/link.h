// Link: one end of a reliable, numbered link over streams that may break.
//
// Purpose: executors and the coordinator exchange messages over a gRPC stream.
// When it breaks, a new stream replaces it, and no message may be lost or
// handled twice. A Link numbers outgoing messages (1, 2, ... without gaps),
// keeps each until the peer has acknowledged it, and says whether an incoming
// message is new. The Link sends nothing: its owner does, while it has a
// stream.
//
//   Link<CoordinatorMessage> link(kMaxUnacknowledged);
//   const CoordinatorMessage* m = link.Push(std::move(message));
//   if (m == nullptr) ...the peer does not acknowledge: disconnect it...
//   if (connected) stream.Write(*m);
//
//   if (link.OnReceived(in.sequence(), in.acknowledged()) == Receipt::kNew) ...
//   if (link.AckDue()) stream.Write(link.Bare({}));     // a bare ack; an owner
//                     // that will soon send something else may wait for that
//
//   // On a new stream, with the `acknowledged` of the peer's first message:
//   link.OnReceived(0, first.acknowledged());
//   stream.Write(link.Bare(welcome));
//   link.Resend([&](const CoordinatorMessage& m) { stream.Write(m); });
//
// Message has set_sequence(uint64), set_acknowledged(uint64), sequence(), and
// is copyable; a protobuf message or any struct.
//
// Thread contract: not synchronized; one owner.
//
// Invariants: outbox_ holds the messages numbered acknowledged_+1 to sent_, in
// order. All messages from 1 to received_ have been received.
#ifndef MAYPOLE_COMMON_WIRE_LINK_H_
#define MAYPOLE_COMMON_WIRE_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace maypole {

// How the receiver must treat an incoming message.
enum class Receipt {
  kNew,         // the next one: handle its payload
  kUnnumbered,  // sequence 0: a hello, welcome or bare ack
  kDuplicate,   // handled before (sent again after a break): drop it
  kGap,         // numbers are missing: the peer violates the protocol
  kBadAck,      // acknowledges a number never sent: also a violation
};

template <typename Message>
class Link {
 public:
  explicit Link(size_t max_unacknowledged)
      : max_unacknowledged_(max_unacknowledged) {}

  // Forgets everything: the peer has been replaced by one that knows nothing.
  void Reset() {
    outbox_.clear();
    sent_ = acknowledged_ = received_ = told_ = 0;
  }

  // Numbers the message and keeps it until it is acknowledged. Returns the
  // message to send (valid until the next call), or null, without effect, if
  // max_unacknowledged messages are waiting for the peer already.
  const Message* Push(Message message) {
    if (outbox_.size() >= max_unacknowledged_) return nullptr;
    message.set_sequence(++sent_);
    outbox_.push_back(std::move(message));
    return Stamp(&outbox_.back());
  }

  // Prepares an unnumbered message (hello, welcome, bare ack) for sending.
  Message Bare(Message message) {
    message.set_sequence(0);
    Stamp(&message);
    return message;
  }

  // Processes the two numbers of an incoming message. kGap and kBadAck leave
  // the link unchanged.
  Receipt OnReceived(uint64_t sequence, uint64_t acknowledged) {
    if (acknowledged > sent_) return Receipt::kBadAck;
    if (sequence > received_ + 1) return Receipt::kGap;
    while (acknowledged_ < acknowledged) {
      outbox_.pop_front();
      ++acknowledged_;
    }
    if (sequence == 0) return Receipt::kUnnumbered;
    if (sequence <= received_) return Receipt::kDuplicate;
    received_ = sequence;
    return Receipt::kNew;
  }

  // Calls send(const Message&) for each message that the peer has not
  // acknowledged, in order.
  template <typename Send>
  void Resend(Send&& send) {
    for (Message& m : outbox_) send(*Stamp(&m));
  }

  // True if a numbered message was received that no outgoing message has
  // acknowledged yet.
  bool AckDue() const { return untold() > 0; }
  // The number of such messages.
  uint64_t untold() const { return received_ - told_; }

  uint64_t received() const { return received_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t sent() const { return sent_; }
  size_t unacknowledged() const { return outbox_.size(); }

 private:
  const Message* Stamp(Message* message) {
    message->set_acknowledged(received_);
    told_ = received_;
    return message;
  }

  const size_t max_unacknowledged_;
  std::deque<Message> outbox_;
  uint64_t sent_ = 0;          // last number assigned
  uint64_t acknowledged_ = 0;  // last number that the peer has acknowledged
  uint64_t received_ = 0;      // last number received
  uint64_t told_ = 0;          // last `acknowledged` sent
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_LINK_H_
