// Link: one end of a reliable, numbered link over streams that may break.
//
// Purpose: executors and the coordinator talk over a gRPC stream; when it
// breaks, a new one takes over and nothing may be lost or handled twice. A Link
// numbers what goes out (1, 2, ... without gaps), keeps it until the peer has
// acknowledged it, and tells of what comes in whether it is new. It sends
// nothing itself: its owner does, while it has a stream.
//
//   Link<CoordinatorMessage> link(kMaxUnacknowledged);
//   const CoordinatorMessage* m = link.Push(std::move(message));
//   if (m == nullptr) ...the peer does not acknowledge: give it up...
//   if (connected) stream.Write(*m);
//
//   if (link.OnReceived(in.sequence(), in.acknowledged()) == Receipt::kNew) ...
//   if (link.AckDue()) stream.Write(link.Bare({}));     // a bare ack
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
// Invariants: outbox_ holds the numbers acknowledged_+1 .. sent_, in order;
// received_ is the last number of an unbroken row from 1.
#ifndef MAYPOLE_COMMON_WIRE_LINK_H_
#define MAYPOLE_COMMON_WIRE_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace maypole {

// What an incoming message is.
enum class Receipt {
  kNew,         // the next one: handle its payload
  kUnnumbered,  // sequence 0: a hello, welcome or bare ack
  kDuplicate,   // handled before (sent again after a break): drop it
  kGap,         // numbers are missing: the peer breaks the protocol
  kBadAck,      // acknowledges what was never sent: likewise
};

template <typename Message>
class Link {
 public:
  explicit Link(size_t max_unacknowledged)
      : max_unacknowledged_(max_unacknowledged) {}

  // Numbers the message and keeps it until it is acknowledged. Returns it as it
  // must be sent (valid until the next call), or null when
  // max_unacknowledged messages wait for the peer already: then nothing was
  // taken.
  const Message* Push(Message message) {
    if (outbox_.size() >= max_unacknowledged_) return nullptr;
    message.set_sequence(++sent_);
    outbox_.push_back(std::move(message));
    return Stamp(&outbox_.back());
  }

  // A message outside the numbering (hello, welcome, bare ack) as it must be
  // sent.
  Message Bare(Message message) {
    message.set_sequence(0);
    Stamp(&message);
    return message;
  }

  // Takes note of the two numbers of an incoming message. After kGap and
  // kBadAck the link is as before.
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

  // Calls send(const Message&) for all that the peer has not acknowledged, in
  // order.
  template <typename Send>
  void Resend(Send&& send) {
    for (Message& m : outbox_) send(*Stamp(&m));
  }

  // True if something numbered came in that no outgoing message has
  // acknowledged yet.
  bool AckDue() const { return told_ < received_; }

  uint64_t received() const { return received_; }
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
  uint64_t sent_ = 0;          // last number given out
  uint64_t acknowledged_ = 0;  // last number the peer has
  uint64_t received_ = 0;      // last number we have
  uint64_t told_ = 0;          // last `acknowledged` we sent
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_LINK_H_
