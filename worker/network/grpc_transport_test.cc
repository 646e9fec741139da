#include "worker/network/grpc_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/program/testing/fake_listener.h"
#include "worker/network/testing/fake_coordinator.h"

namespace maypole::worker {
namespace {

// Collects the transport's callbacks, so that tests can wait for them.
class Heard {
 public:
  TransportCallbacks callbacks() {
    TransportCallbacks c;
    c.on_message = [this](proto::CoordinatorMessage m) {
      Change([&] { messages.push_back(m.epoch_start().epoch()); });
    };
    c.on_acknowledged = [this](uint64_t n) {
      Change([&] { acknowledged = n; });
    };
    c.on_away = [this](absl::Status s) { Change([&] { away = s; }); };
    c.on_reconnected = [this] { Change([&] { ++reconnected; }); };
    c.on_replaced = [this] { Change([&] { ++replaced; }); };
    c.on_lost = [this](absl::Status s) { Change([&] { lost = s; }); };
    return c;
  }

  template <typename F>
  bool Await(F&& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }

  std::vector<uint64_t> messages;
  uint64_t acknowledged = 0;
  int reconnected = 0;
  int replaced = 0;
  std::optional<absl::Status> away;
  std::optional<absl::Status> lost;

 private:
  template <typename F>
  void Change(F&& f) {
    std::lock_guard lock(mutex_);
    f();
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::shared_ptr<CoordinatorChoice> Choice(std::vector<std::string> addresses) {
  return std::make_shared<CoordinatorChoice>(std::move(addresses));
}

GrpcTransportOptions Options(const std::string& address) {
  GrpcTransportOptions o;
  o.coordinators = Choice({address});
  o.credential = "secret";
  o.hello.set_node("n0");
  return o;
}

// Answers RanksReady{size} by EpochStart{epoch = size}.
void Echo(FakeCoordinator& coordinator) {
  coordinator.on_message = [](const proto::ExecutorMessage& m,
                              const FakeCoordinator::Reply& reply) {
    proto::CoordinatorMessage out;
    out.mutable_epoch_start()->set_epoch(m.ranks_ready().size());
    reply(out);
  };
}

proto::ExecutorMessage Ready(uint32_t size) {
  proto::ExecutorMessage m;
  m.mutable_ranks_ready()->set_size(size);
  return m;
}

TEST(GrpcTransport, SendsReceivesAndAcknowledges) {
  FakeCoordinator coordinator;
  Echo(coordinator);
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  EXPECT_EQ(transport.Send(Ready(5)), 1u);
  EXPECT_EQ(transport.Send(Ready(6)), 2u);
  EXPECT_TRUE(heard.Await([&] { return heard.messages.size() == 2; }));
  EXPECT_TRUE(heard.Await([&] { return heard.acknowledged == 2; }));
  EXPECT_EQ(heard.messages, (std::vector<uint64_t>{5, 6}));
  EXPECT_EQ(coordinator.secret(), "secret");
}

TEST(GrpcTransport, WhatComesOnTwoWaysComesInOrder) {
  constexpr uint64_t kMessages = 800;  // it keeps 1,000
  FakeCoordinator coordinator;
  Echo(coordinator);
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<proto::CoordinatorMessage> relayed;
  coordinator.relay = [&](proto::CoordinatorMessage m) {
    std::lock_guard lock(mutex);
    relayed.push_back(std::move(m));
    changed.notify_all();
  };
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  std::vector<uint64_t> expected;
  for (uint64_t n = 1; n <= kMessages; ++n) {
    transport.Send(Ready(static_cast<uint32_t>(n)));
    expected.push_back(n);
  }
  for (uint64_t taken = 0; taken < kMessages / 2; ++taken) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20),
                                 [&] { return !relayed.empty(); }));
    const proto::CoordinatorMessage m = std::move(relayed.front());
    relayed.pop_front();
    lock.unlock();
    transport.TakeRelayed("i", m);
    transport.TakeRelayed("another incarnation", m);
    if (taken % 7 == 0) transport.TakeRelayed("i", m);  // once more
  }
  EXPECT_TRUE(heard.Await([&] { return heard.messages.size() == kMessages; }));
  EXPECT_EQ(heard.messages, expected);
  EXPECT_TRUE(heard.Await([&] { return heard.acknowledged == kMessages; }));
  EXPECT_EQ(heard.lost, std::nullopt);
}

TEST(GrpcTransport, AcknowledgesWithItsNextMessageOrAfterAPause) {
  FakeCoordinator coordinator;
  coordinator.on_message = [](const proto::ExecutorMessage& m,
                              const FakeCoordinator::Reply& reply) {
    for (uint32_t i = 0; i < m.ranks_ready().size(); ++i) {
      proto::CoordinatorMessage out;
      out.mutable_epoch_start()->set_epoch(i);
      reply(out);
    }
  };
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  // Each answer makes the next message, which acknowledges it.
  size_t answers = 0;
  int pauses = 0;
  auto last = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    transport.Send(Ready(1));
    ++answers;
    ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == answers; }));
    // On a busy machine an answer may take longer than the pause.
    const auto now = std::chrono::steady_clock::now();
    pauses += now - std::exchange(last, now) >= kAckPause / 2;
  }
  EXPECT_LE(coordinator.bare_acks, pauses + 1);
  // Then there is no further message.
  const auto all_acknowledged = [&](int acks) {
    for (int i = 0; i < 10000; ++i) {
      if (coordinator.bare_acks >= acks && coordinator.unacknowledged == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  };
  EXPECT_TRUE(all_acknowledged(1));
  const int before = coordinator.bare_acks;
  const auto many = static_cast<uint32_t>(kAckEvery * 10);
  transport.Send(Ready(many));
  answers += many;
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == answers; }));
  EXPECT_TRUE(all_acknowledged(before + 1));
  EXPECT_LE(coordinator.bare_acks - before, static_cast<int>(many / 2));
}

TEST(GrpcTransport, BrokenStreamIsResumedAndNothingIsLostOrDoubled) {
  FakeCoordinator coordinator;
  Echo(coordinator);
  Heard heard;
  std::vector<uint64_t> want;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  for (uint32_t round = 0; round < 5; ++round) {
    for (uint32_t i = 0; i < 50; ++i) {
      want.push_back(round * 50 + i + 1);
      transport.Send(Ready(round * 50 + i + 1));
      if (i == 25) coordinator.Break();
    }
    EXPECT_TRUE(
        heard.Await([&] { return heard.messages.size() >= want.size(); }));
  }
  EXPECT_EQ(heard.messages, want);
  EXPECT_GE(heard.reconnected, 1);
  EXPECT_FALSE(heard.lost.has_value());
}

TEST(GrpcTransport, AnotherCoordinatorAtTheAddressIsToldTheStateFirst) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  Echo(*coordinator);
  Heard heard;
  GrpcTransportOptions options = Options(coordinator->address());
  options.connect_timeout = std::chrono::milliseconds(300);
  GrpcTransport transport(options, heard.callbacks());
  transport.Send(Ready(1));
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 1; }));
  const int port = coordinator->port();
  coordinator.reset();
  ASSERT_TRUE(heard.Await([&] { return heard.away.has_value(); }));
  EXPECT_EQ(heard.away->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      heard.away->message().find(
          "coordinator " + options.coordinators->addresses()[0] + " lost: "),
      0u)
      << *heard.away;
  transport.Send(Ready(2));  // to the one before, which will not hear it
  std::this_thread::sleep_for(2 * options.connect_timeout);
  std::mutex mutex;
  std::vector<int> heard_there;
  auto other = std::make_unique<FakeCoordinator>(
      port, "j",
      [&](const proto::ExecutorMessage& m,
          const FakeCoordinator::Reply& reply) {
        std::lock_guard lock(mutex);
        heard_there.push_back(static_cast<int>(m.payload_case()));
        proto::CoordinatorMessage out;
        out.mutable_epoch_start()->set_epoch(100 + m.sequence());
        reply(out);
      });
  ASSERT_TRUE(heard.Await([&] { return heard.replaced == 1; }));
  EXPECT_EQ(transport.Send(Ready(3)), 0u);
  proto::ExecutorMessage state;
  state.mutable_node_state();
  EXPECT_EQ(transport.Send(state), 1u);
  EXPECT_EQ(transport.Send(Ready(4)), 2u);
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 3; }));
  EXPECT_EQ(heard.messages, (std::vector<uint64_t>{1, 101, 102}));
  EXPECT_FALSE(heard.lost.has_value());
  std::lock_guard lock(mutex);
  EXPECT_EQ(heard_there,
            (std::vector<int>{proto::ExecutorMessage::kNodeState,
                              proto::ExecutorMessage::kRanksReady}));
}

// gRPC takes messages of up to 4 MiB. A longer one would be sent again on every
// stream, for ever.
TEST(GrpcTransport, ALongStateReachesAnotherCoordinatorAtOnce) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  Echo(*coordinator);
  Heard heard;
  GrpcTransport transport(Options(coordinator->address()), heard.callbacks());
  transport.Send(Ready(1));
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 1; }));
  const int port = coordinator->port();
  coordinator.reset();
  std::mutex mutex;
  std::string got;
  auto other = std::make_unique<FakeCoordinator>(
      port, "j",
      [&](const proto::ExecutorMessage& m,
          const FakeCoordinator::Reply& reply) {
        std::lock_guard lock(mutex);
        got += m.node_state_part().piece();
        if (!m.node_state_part().last()) return;
        proto::CoordinatorMessage out;
        out.mutable_epoch_start()->set_epoch(100);
        reply(out);
      });
  ASSERT_TRUE(heard.Await([&] { return heard.replaced == 1; }));
  proto::ExecutorMessage state;
  for (uint64_t d = 1; d <= 2; ++d) {
    proto::Run* run =
        state.mutable_node_state()->add_decisions()->mutable_run();
    run->set_decision(d);
    for (int64_t i = 0; i < 1 << 20; ++i) run->add_splits(i << 20);
  }
  const std::string all = state.node_state().SerializeAsString();
  ASSERT_GT(all.size(), 2 * kMaxExecutorMessageBytes);
  EXPECT_GT(transport.Send(std::move(state)), 1u);
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 2; }));
  EXPECT_FALSE(heard.lost.has_value());
  EXPECT_EQ(other->hellos(), 1) << "the stream did not break";
  std::lock_guard lock(mutex);
  EXPECT_TRUE(got == all);
}

// A listener at the coordinator's port that does not answer the TLS diagnosis
// does not block Send().
TEST(GrpcTransport, NobodyWaitsForTheDiagnosis) {
  std::atomic<bool> asked = false;
  FakeListener listener([&](FakeListener::Caller& c) {
    if (c.Read().substr(0, 1) != "\x16") return;  // gRPC's, not TLS
    asked = true;
    c.Wait();
  });
  Heard heard;
  GrpcTransportOptions options = Options(listener.address());
  options.connect_timeout = std::chrono::milliseconds(300);
  GrpcTransport transport(options, heard.callbacks());
  for (int i = 0; i < 2000 && !asked; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(asked);
  const auto start = std::chrono::steady_clock::now();
  transport.Send(Ready(1));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kDiagnosisTime / 2);
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  EXPECT_NE(heard.lost->message().find("cannot reach the coordinator at " +
                                       options.coordinators->addresses()[0]),
            std::string::npos)
      << *heard.lost;
}

// The last try may be too short to hear anything.
TEST(GrpcTransport, AnUnreachableCoordinatorIsNamedWithTheReason) {
  int port = 0;
  { port = FakeCoordinator().port(); }
  for (const int ms : {60, 130, 170, 240, 310, 420}) {
    Heard heard;
    GrpcTransportOptions options = Options("127.0.0.1:" + std::to_string(port));
    options.connect_timeout = std::chrono::milliseconds(ms);
    GrpcTransport transport(options, heard.callbacks());
    ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
    const std::string text(heard.lost->message());
    EXPECT_NE(text.find("onnection refused"), std::string::npos) << text;
    EXPECT_EQ(text.find("CANCELLED"), std::string::npos) << text;
  }
}

TEST(GrpcTransport, ACoordinatorThatDoesNotAnswerIsSaidNotTo) {
  FakeListener silent([](FakeListener::Caller& c) { c.Wait(); });
  Heard heard;
  GrpcTransportOptions options = Options(silent.address());
  options.connect_timeout = std::chrono::milliseconds(300);
  GrpcTransport transport(options, heard.callbacks());
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  const std::string text(heard.lost->message());
  EXPECT_EQ(text.find("CANCELLED"), std::string::npos) << text;
}

// TLS has worked before, so it is not the cause of the failure.
TEST(GrpcTransport, ACoordinatorThatWasThereIsNotAskedForTls) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  Echo(*coordinator);
  Heard heard;
  GrpcTransportOptions options = Options(coordinator->address());
  options.connect_timeout = std::chrono::milliseconds(600);
  GrpcTransport transport(options, heard.callbacks());
  transport.Send(Ready(1));
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 1; }));
  const int port = coordinator->port();
  coordinator.reset();
  std::atomic<int> callers = 0, asked = 0;
  FakeListener listener(
      [&](FakeListener::Caller& c) {
        ++callers;
        if (c.Read().substr(0, 1) == "\x16") ++asked;
      },
      port);
  ASSERT_EQ(listener.port(), port);
  for (int i = 0; i < 2000 && callers < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GE(callers, 3);
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(heard.lost.has_value());
}

TEST(GrpcTransport, RefusalIsFinalAndKeepsItsWords) {
  FakeCoordinator coordinator;
  coordinator.refusal = "wrong token";
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  EXPECT_EQ(heard.lost->code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(heard.lost->message(), "coordinator " + coordinator.address() +
                                       " has refused this node: wrong token");
  EXPECT_EQ(coordinator.hellos(), 0);
}

TEST(GrpcTransport, WaitsForTheExecutorThatHasThePlaceToEnd) {
  FakeCoordinator coordinator;
  coordinator.taken = 3;
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  transport.Send({});
  EXPECT_TRUE(heard.Await([&] { return heard.acknowledged == 1; }));
  EXPECT_FALSE(heard.lost.has_value());
}

TEST(GrpcTransport, AnExecutorThatKeepsThePlaceIsAnError) {
  FakeCoordinator coordinator;
  coordinator.taken = 1 << 30;
  GrpcTransportOptions options = Options(coordinator.address());
  options.connect_timeout = std::chrono::milliseconds(300);
  Heard heard;
  GrpcTransport transport(options, heard.callbacks());
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  EXPECT_EQ(heard.lost->code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(heard.lost->message(), "coordinator " + coordinator.address() +
                                       " has refused this node: taken");
  EXPECT_LT(coordinator.taken, (1 << 30) - 1);
}

TEST(GrpcTransport, CoordinatorThatAcknowledgesNothingIsGivenUp) {
  FakeCoordinator coordinator;
  coordinator.ack_nothing = true;
  Heard heard;
  GrpcTransport transport(Options(coordinator.address()), heard.callbacks());
  for (size_t i = 0; i <= kMaxUnacknowledged; ++i) transport.Send(Ready(1));
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  EXPECT_NE(heard.lost->message().find("4096"), std::string::npos)
      << *heard.lost;
}

TEST(GrpcTransport, NobodyThereAndClosedWhileTrying) {
  Heard heard;
  int port = 0;
  { port = FakeCoordinator().port(); }
  auto transport = std::make_unique<GrpcTransport>(
      Options("127.0.0.1:" + std::to_string(port)), heard.callbacks());
  transport.reset();  // must not wait for the bound
  EXPECT_FALSE(heard.lost.has_value());
}

TEST(GrpcTransport, TriesTheOtherCoordinatorsUntilOneWelcomes) {
  FakeCoordinator coordinator;
  // Nobody listens at the discard port.
  GrpcTransportOptions options = Options("");
  options.coordinators = Choice({"127.0.0.1:9", coordinator.address()});
  Heard heard;
  GrpcTransport transport(options, heard.callbacks());
  transport.Send({});
  EXPECT_TRUE(heard.Await([&] { return heard.acknowledged == 1; }));
  EXPECT_FALSE(heard.lost.has_value());
}

TEST(GrpcTransport, TheNextTransportJoinsNoOlderLeaderEither) {
  FakeCoordinator leader;
  Echo(leader);
  leader.term = 7;
  FakeCoordinator replaced;
  replaced.term = 6;
  GrpcTransportOptions options = Options("");
  options.coordinators = Choice({leader.address(), replaced.address()});
  options.connect_timeout = std::chrono::milliseconds(500);
  {
    Heard heard;
    GrpcTransport transport(options, heard.callbacks());
    transport.Send(Ready(1));
    ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 1; }));
  }
  leader.Stop();
  Heard heard;
  GrpcTransport transport(options, heard.callbacks());
  ASSERT_TRUE(heard.Await([&] { return heard.lost.has_value(); }));
  EXPECT_EQ(heard.acknowledged, 0u);
  EXPECT_GT(replaced.hellos(), 0);
}

// The leader waits for an executor that is away, but not for ever.
TEST(GrpcTransport, AnotherThatDoesNotAnswerIsLeftSoon) {
  std::atomic<bool> called = false;
  FakeListener silent([&](FakeListener::Caller& c) {
    called = true;
    c.Wait();
  });
  auto leader = std::make_unique<FakeCoordinator>();
  Echo(*leader);
  Heard heard;
  GrpcTransportOptions options = Options("");
  options.coordinators = Choice({leader->address(), silent.address()});
  options.connect_timeout = std::chrono::seconds(200);
  GrpcTransport transport(options, heard.callbacks());
  transport.Send(Ready(1));
  ASSERT_TRUE(heard.Await([&] { return heard.messages.size() == 1; }));
  const int port = leader->port();
  leader.reset();
  while (!called) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  leader = std::make_unique<FakeCoordinator>(port, "another");
  EXPECT_TRUE(heard.Await([&] { return heard.replaced == 1; }));
}

}  // namespace
}  // namespace maypole::worker
