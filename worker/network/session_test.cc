#include "worker/network/session.h"

#include "gtest/gtest.h"

namespace maypole::worker {
namespace {

using Welcome = CoordinatorSession::Welcome;

proto::CoordinatorMessage WelcomeOf(const std::string& session,
                                    const std::string& incarnation,
                                    uint64_t acknowledged = 0) {
  proto::CoordinatorMessage m;
  m.mutable_welcome()->set_session(session);
  m.mutable_welcome()->set_incarnation(incarnation);
  m.set_acknowledged(acknowledged);
  return m;
}

proto::ExecutorMessage Gone() {
  proto::ExecutorMessage m;
  m.mutable_rank_gone()->set_rank(3);
  return m;
}

proto::ExecutorMessage State() {
  proto::ExecutorMessage m;
  m.mutable_node_state()->set_last_decision(7);
  return m;
}

class CoordinatorSessionTest : public testing::Test {
 protected:
  CoordinatorSessionTest() : session_(Hello()) {}

  static proto::ExecutorHello Hello() {
    proto::ExecutorHello hello;
    hello.set_job("job");
    return hello;
  }
  Welcome Open(const proto::CoordinatorMessage& first) {
    const absl::StatusOr<Welcome> welcome = session_.OnWelcome(first, "h:1");
    EXPECT_TRUE(welcome.ok()) << welcome.status();
    return welcome.value_or(Welcome::kOpened);
  }
  std::vector<uint64_t> Resent() {
    std::vector<uint64_t> numbers;
    session_.Resend([&](const proto::ExecutorMessage& m) {
      numbers.push_back(m.sequence());
    });
    return numbers;
  }

  CoordinatorSession session_;
};

TEST_F(CoordinatorSessionTest, ResumesWhatIsNotAcknowledged) {
  EXPECT_EQ(session_.Hello().hello().session(), "");
  EXPECT_FALSE(session_.reached());
  EXPECT_EQ(Open(WelcomeOf("5", "a")), Welcome::kOpened);
  EXPECT_TRUE(session_.reached());
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(session_.Push(Gone())->sequence(), i);
  }
  session_.OnStreamEnded();
  EXPECT_EQ(session_.Hello().hello().session(), "5");
  EXPECT_EQ(session_.Hello().hello().incarnation(), "a");
  EXPECT_EQ(Open(WelcomeOf("5", "a", 2)), Welcome::kResumed);
  EXPECT_EQ(Resent(), std::vector<uint64_t>{3});
}

TEST_F(CoordinatorSessionTest, AnotherCoordinatorIsToldTheStateFirst) {
  Open(WelcomeOf("5", "a"));
  session_.Push(Gone());
  session_.OnStreamEnded();
  EXPECT_EQ(Open(WelcomeOf("1", "b")), Welcome::kReplaced);
  EXPECT_TRUE(Resent().empty()) << "what was said to the one before";
  EXPECT_EQ(session_.Push(Gone()), nullptr);
  EXPECT_EQ(session_.Push(State())->sequence(), 1u);
  EXPECT_EQ(session_.Push(Gone())->sequence(), 2u);
  EXPECT_FALSE(session_.overflowed());
  session_.OnStreamEnded();
  EXPECT_EQ(session_.Hello().hello().session(), "1");
  EXPECT_EQ(session_.Hello().hello().incarnation(), "b");
}

// A state with the sizes of large alltoalls.
TEST_F(CoordinatorSessionTest, ALongStateIsSentInPartsThatAreMessages) {
  Open(WelcomeOf("5", "a"));
  session_.OnStreamEnded();
  EXPECT_EQ(Open(WelcomeOf("1", "b")), Welcome::kReplaced);
  proto::ExecutorMessage big = State();
  for (uint64_t d = 1; d <= 3; ++d) {
    proto::Run* run = big.mutable_node_state()->add_decisions()->mutable_run();
    run->set_decision(d);
    for (int64_t i = 0; i < 1 << 20; ++i) run->add_splits(i);
  }
  const std::string all = big.node_state().SerializeAsString();
  ASSERT_GT(all.size(), 2 * kMaxExecutorMessageBytes);
  std::string got;
  uint64_t sequence = 0;
  const auto parts = session_.PartsOf(big);
  for (const proto::ExecutorMessage& part : parts) {
    const proto::ExecutorMessage* m = session_.Push(part);
    ASSERT_NE(m, nullptr);
    EXPECT_EQ(m->sequence(), ++sequence);
    EXPECT_LT(m->ByteSizeLong(), kMaxExecutorMessageBytes);
    EXPECT_EQ(m->node_state_part().last(), sequence == parts.size());
    got += m->node_state_part().piece();
  }
  EXPECT_EQ(got, all);
  EXPECT_EQ(session_.Push(Gone())->sequence(), sequence + 1);
  EXPECT_EQ(session_.too_long(), 0u);
  // A short one needs no parts.
  EXPECT_TRUE(session_.PartsOf(State()).at(0).has_node_state());
}

// The coordinator would break the stream, and get the same message on the next
// one, for ever.
TEST_F(CoordinatorSessionTest, AMessageThatIsTooLongEndsTheSession) {
  Open(WelcomeOf("5", "a"));
  proto::ExecutorMessage big = Gone();
  big.mutable_rank_gone()->set_how(std::string(kMaxExecutorMessageBytes, 'x'));
  EXPECT_EQ(session_.PartsOf(big).size(), 1u) << "only states have parts";
  EXPECT_EQ(session_.Push(big), nullptr);
  EXPECT_EQ(session_.too_long(), big.ByteSizeLong());
  EXPECT_TRUE(Resent().empty());
}

TEST_F(CoordinatorSessionTest, TooMuchWhileAwayNeedsAnotherCoordinator) {
  Open(WelcomeOf("5", "a"));
  session_.OnStreamEnded();
  for (size_t i = 0; i < kMaxUnacknowledged; ++i) {
    ASSERT_NE(session_.Push(Gone()), nullptr);
  }
  EXPECT_EQ(session_.Push(Gone()), nullptr);
  EXPECT_FALSE(session_.overflowed()) << "nobody could acknowledge";
  EXPECT_EQ(session_.OnWelcome(WelcomeOf("5", "a"), "h:1").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Open(WelcomeOf("1", "b")), Welcome::kReplaced);
  EXPECT_NE(session_.Push(State()), nullptr);
}

TEST_F(CoordinatorSessionTest, TooMuchWhileConnectedIsTheCoordinatorsFault) {
  Open(WelcomeOf("5", "a"));
  for (size_t i = 0; i <= kMaxUnacknowledged; ++i) session_.Push(Gone());
  EXPECT_TRUE(session_.overflowed());
}

// A stream and other executors bring messages of the coordinator.
class RelayedTest : public CoordinatorSessionTest {
 protected:
  void SetUp() override { Open(WelcomeOf("5", "a")); }
  static proto::CoordinatorMessage Numbered(uint64_t n, uint64_t ack = 0) {
    proto::CoordinatorMessage m;
    m.set_sequence(n);
    m.set_acknowledged(ack);
    return m;
  }
  using Numbers = std::vector<uint64_t>;
  static Numbers NumbersOf(const CoordinatorSession::Messages& messages) {
    Numbers numbers;
    for (const auto& m : messages) numbers.push_back(m.sequence());
    return numbers;
  }
  Numbers Stream(uint64_t n, uint64_t ack = 0) {
    CoordinatorSession::Messages ready;
    EXPECT_TRUE(session_.OnReceived(Numbered(n, ack), &ready));
    return NumbersOf(ready);
  }
  Numbers Relay(uint64_t n, const std::string& incarnation = "a",
                uint64_t ack = 0) {
    CoordinatorSession::Messages ready;
    session_.OnRelayed(incarnation, Numbered(n, ack), &ready);
    return NumbersOf(ready);
  }
};

TEST_F(RelayedTest, MessagesAreHandledInTheirOrderAndOnce) {
  EXPECT_EQ(Stream(1), Numbers{1});
  EXPECT_EQ(Relay(2), Numbers{2});
  EXPECT_EQ(Relay(4), Numbers{});
  EXPECT_EQ(Stream(5), Numbers{}) << "4 and 5 wait for 3";
  EXPECT_EQ(Relay(3), (Numbers{3, 4, 5}));
  EXPECT_EQ(Stream(3), Numbers{}) << "it comes on both ways";
  EXPECT_EQ(Stream(4), Numbers{});
  EXPECT_EQ(Stream(6), Numbers{6});
}

TEST_F(RelayedTest, AMessageThatWaitsMayComeAgain) {
  EXPECT_EQ(Relay(3), Numbers{});
  EXPECT_EQ(Stream(1), Numbers{1});
  EXPECT_EQ(Stream(2), (Numbers{2, 3}));
  EXPECT_EQ(Relay(5), Numbers{});
  EXPECT_EQ(Relay(5), Numbers{});
  EXPECT_EQ(Stream(4), (Numbers{4, 5}));
}

TEST_F(RelayedTest, AMessageThatWaitsAcknowledgesAtOnce) {
  session_.Push(Gone());
  session_.Push(Gone());
  EXPECT_EQ(Relay(2, "a", /*ack=*/1), Numbers{});
  EXPECT_EQ(session_.acknowledged(), 1u);
  EXPECT_EQ(session_.Ack().acknowledged(), 0u) << "of those without gaps";
}

TEST_F(RelayedTest, WhatAnotherCoordinatorHasSentIsDropped) {
  EXPECT_EQ(Relay(1, "b"), Numbers{});
  EXPECT_EQ(Relay(2), Numbers{});  // waits
  session_.OnStreamEnded();
  Open(WelcomeOf("1", "b"));
  EXPECT_EQ(Relay(1), Numbers{});
  EXPECT_EQ(Stream(1), Numbers{1}) << "2 was the other one's";
  EXPECT_EQ(Relay(2, "b"), Numbers{2});
}

TEST_F(RelayedTest, OnlySoManyWait) {
  for (uint64_t n = 2; n < 2 + kMaxUnacknowledged; ++n) Stream(n);
  CoordinatorSession::Messages ready;
  EXPECT_FALSE(session_.OnReceived(Numbered(2 + kMaxUnacknowledged), &ready));
}

TEST_F(CoordinatorSessionTest, RefusalsAreFinal) {
  proto::CoordinatorMessage refused;
  refused.mutable_refused()->set_code(7);
  refused.mutable_refused()->set_message("wrong token");
  const absl::Status status = session_.OnWelcome(refused, "h:1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(),
            "coordinator h:1 has refused this node: wrong token");
  EXPECT_FALSE(session_.OnWelcome({}, "h:1").ok());
}

}  // namespace
}  // namespace maypole::worker
