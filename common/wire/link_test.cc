#include "common/wire/link.h"

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace maypole {
namespace {

struct Message {
  uint64_t number = 0;
  uint64_t ack = 0;
  int payload = 0;

  void set_sequence(uint64_t v) { number = v; }
  void set_acknowledged(uint64_t v) { ack = v; }
  uint64_t sequence() const { return number; }
};

Message Payload(int payload) {
  Message m;
  m.payload = payload;
  return m;
}

TEST(LinkTest, NumbersFromOneWithoutGaps) {
  Link<Message> link(10);
  EXPECT_EQ(link.Push(Payload(7))->number, 1u);
  const Message* second = link.Push(Payload(8));
  EXPECT_EQ(second->number, 2u);
  EXPECT_EQ(second->payload, 8);
  EXPECT_EQ(second->ack, 0u);
  EXPECT_EQ(link.unacknowledged(), 2u);
}

TEST(LinkTest, RefusesMoreThanTheLimitUntilAcknowledged) {
  Link<Message> link(2);
  ASSERT_NE(link.Push(Payload(1)), nullptr);
  ASSERT_NE(link.Push(Payload(2)), nullptr);
  EXPECT_EQ(link.Push(Payload(3)), nullptr);
  EXPECT_EQ(link.OnReceived(0, 1), Receipt::kUnnumbered);
  const Message* third = link.Push(Payload(3));
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(third->number, 3u);
}

TEST(LinkTest, TellsNewFromDuplicateAndGap) {
  Link<Message> link(10);
  EXPECT_EQ(link.OnReceived(1, 0), Receipt::kNew);
  EXPECT_EQ(link.OnReceived(1, 0), Receipt::kDuplicate);
  EXPECT_EQ(link.OnReceived(3, 0), Receipt::kGap);
  EXPECT_EQ(link.OnReceived(2, 0), Receipt::kNew);
  EXPECT_EQ(link.received(), 2u);
}

TEST(LinkTest, AnAckOfWhatWasNeverSentIsAnErrorAndChangesNothing) {
  Link<Message> link(10);
  link.Push(Payload(1));
  EXPECT_EQ(link.OnReceived(1, 2), Receipt::kBadAck);
  EXPECT_EQ(link.received(), 0u);
  EXPECT_EQ(link.unacknowledged(), 1u);
}

TEST(LinkTest, AnAckIsDueUntilSomethingCarriesIt) {
  Link<Message> link(10);
  EXPECT_FALSE(link.AckDue());
  link.OnReceived(1, 0);
  EXPECT_TRUE(link.AckDue());
  EXPECT_EQ(link.Push(Payload(1))->ack, 1u);
  EXPECT_FALSE(link.AckDue());
  link.OnReceived(2, 0);
  const Message bare = link.Bare({});
  EXPECT_EQ(bare.ack, 2u);
  EXPECT_EQ(bare.number, 0u);
  EXPECT_FALSE(link.AckDue());
}

TEST(LinkTest, AnOldAckDoesNotTakeBackANewerOne) {
  Link<Message> link(10);
  link.Push(Payload(1));
  link.Push(Payload(2));
  link.OnReceived(0, 2);
  link.OnReceived(0, 1);
  EXPECT_EQ(link.unacknowledged(), 0u);
}

TEST(LinkTest, ResendsWhatThePeerLacksWithAFreshAck) {
  Link<Message> link(10);
  link.Push(Payload(1));
  link.Push(Payload(2));
  link.Push(Payload(3));
  link.OnReceived(1, 1);
  std::vector<Message> again;
  link.Resend([&](const Message& m) { again.push_back(m); });
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].number, 2u);
  EXPECT_EQ(again[0].payload, 2);
  EXPECT_EQ(again[0].ack, 1u);
  EXPECT_EQ(again[1].number, 3u);
}

// Two links whose connection loses everything in flight at random moments: all
// messages that were pushed arrive exactly once and in order.
class Wire {
 public:
  explicit Wire(uint64_t seed) : random_(seed) {}

  void Run(int messages) {
    for (int steps = 0;
         got_.size() < static_cast<size_t>(messages) || a_.unacknowledged() > 0;
         ++steps) {
      ASSERT_LT(steps, 100000);
      switch (random_() % 4) {
        case 0:
          if (pushed_ < messages) Push();
          break;
        case 1:
          DeliverToB();
          break;
        case 2:
          DeliverToA();
          break;
        default:
          if (random_() % 8 == 0) Break();
      }
    }
    for (int i = 0; i < messages; ++i) EXPECT_EQ(got_[i], i);
  }

 private:
  void Push() {
    if (const Message* m = a_.Push(Payload(pushed_))) {
      to_b_.push_back(*m);
      ++pushed_;
    }
  }
  void DeliverToB() {
    if (to_b_.empty()) return;
    const Message m = to_b_.front();
    to_b_.pop_front();
    const Receipt r = b_.OnReceived(m.number, m.ack);
    ASSERT_TRUE(r == Receipt::kNew || r == Receipt::kDuplicate);
    if (r == Receipt::kNew) got_.push_back(m.payload);
    if (b_.AckDue()) to_a_.push_back(b_.Bare({}));
  }
  void DeliverToA() {
    if (to_a_.empty()) return;
    ASSERT_EQ(a_.OnReceived(to_a_.front().number, to_a_.front().ack),
              Receipt::kUnnumbered);
    to_a_.pop_front();
  }
  void Break() {
    to_a_.clear();
    to_b_.clear();
    a_.OnReceived(0, b_.Bare({}).ack);
    a_.Resend([this](const Message& m) { to_b_.push_back(m); });
  }

  std::mt19937_64 random_;
  Link<Message> a_{4};
  Link<Message> b_{4};
  std::deque<Message> to_a_, to_b_;
  std::vector<int> got_;
  int pushed_ = 0;
};

TEST(LinkTest, DeliversAllOnceAndInOrderOverABreakingWire) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Wire(seed).Run(200);
  }
}

}  // namespace
}  // namespace maypole
