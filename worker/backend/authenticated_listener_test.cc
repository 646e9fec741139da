// Peers connect through the listener; strangers of every kind are rejected and
// delay no peer.
#include "worker/backend/authenticated_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "worker/backend/handshake_proof.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

AuthenticatedListener::Clock::time_point In(milliseconds time) {
  return AuthenticatedListener::Clock::now() + time;
}

std::unique_ptr<AuthenticatedListener> Open(
    uint32_t self, uint64_t epoch = 7, const std::string& host = "127.0.0.1") {
  auto listener = AuthenticatedListener::Open({.hosts = {host},
                                               .self = self,
                                               .nodes = 2,
                                               .connections = 2,
                                               .epoch = epoch});
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

// A TCP connection to the listener whose address is at the end of `offer`.
class Stranger {
 public:
  explicit Stranger(const std::string& offer)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string tail = offer.substr(33);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<uint16_t>(static_cast<unsigned char>(tail[0]) << 8 |
                                    static_cast<unsigned char>(tail[1])));
    inet_pton(AF_INET, tail.c_str() + 2, &to.sin_addr);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              0);
  }

  void Send(const void* data, size_t bytes) {
    EXPECT_EQ(send(fd_.get(), data, bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
  }
  // Reads up to `bytes` bytes; fewer if the listener closes the connection or
  // sends nothing.
  size_t Read(void* data, size_t bytes, milliseconds time = seconds(10)) {
    size_t got = 0;
    while (got < bytes) {
      pollfd wait{fd_.get(), POLLIN, 0};
      if (poll(&wait, 1, static_cast<int>(time.count())) != 1) break;
      const ssize_t n =
          recv(fd_.get(), static_cast<char*>(data) + got, bytes - got, 0);
      if (n <= 0) break;
      got += static_cast<size_t>(n);
    }
    return got;
  }
  // Returns true if the listener has closed the connection without more data.
  bool HungUp() {
    pollfd wait{fd_.get(), POLLIN, 0};
    char byte;
    return poll(&wait, 1, 10000) == 1 && recv(fd_.get(), &byte, 1, 0) <= 0;
  }

 private:
  Fd fd_;
};

class AuthenticatedListenerTest : public testing::Test {
 protected:
  // Expects that both listeners get all connections.
  void ExpectToMeet() {
    ASSERT_EQ(one_->SetPeers({zero_->AddressFor(1), ""}), nullptr);
    for (uint32_t c = 0; c < 2; ++c) {
      auto called = one_->Connection(0, c, In(seconds(10)));
      ASSERT_TRUE(called.ok()) << called.status();
      auto taken = zero_->Connection(1, c, In(seconds(10)));
      ASSERT_TRUE(taken.ok()) << taken.status();
      EXPECT_EQ(send(called->socket.get(), "x", 1, 0), 1);
      char byte = 0;
      EXPECT_EQ(recv(taken->socket.get(), &byte, 1, 0), 1);
      EXPECT_EQ(byte, 'x');
      // A key of its own.
      EXPECT_EQ(called->tls_key, taken->tls_key);
      keys_.insert(called->tls_key);
    }
  }
  void SetPeers() {
    ASSERT_EQ(zero_->SetPeers({"", one_->AddressFor(0)}), nullptr);
  }
  std::string Port() { return zero_->AddressFor(1); }

  handshake::Hello HelloOfOne() {
    handshake::Hello hello;
    hello.from = 1;
    return hello;
  }

  std::set<handshake::Secret> keys_;
  std::unique_ptr<AuthenticatedListener> zero_ = Open(0);
  std::unique_ptr<AuthenticatedListener> one_ = Open(1);
};

TEST_F(AuthenticatedListenerTest, PeersMeet) {
  SetPeers();
  ExpectToMeet();
  EXPECT_EQ(keys_.size(), 2u);
}

TEST(AuthenticatedListener, PeersMeetOverIpv6) {
  auto zero = Open(0, 7, "::1"), one = Open(1, 7, "::1");
  ASSERT_EQ(zero->SetPeers({"", one->AddressFor(0)}), nullptr);
  ASSERT_EQ(one->SetPeers({zero->AddressFor(1), ""}), nullptr);
  EXPECT_TRUE(one->Connection(0, 1, In(seconds(10))).ok());
  EXPECT_TRUE(zero->Connection(1, 1, In(seconds(10))).ok());
}

TEST_F(AuthenticatedListenerTest, WhoTalksNonsenseIsHungUpOn) {
  SetPeers();
  for (const size_t bytes : {56u, 1000u}) {
    Stranger s(Port());
    s.Send(std::string(bytes, 'G').data(), bytes);
    EXPECT_TRUE(s.HungUp());
  }
  for (handshake::Hello bad :
       {handshake::Hello{.from = 0}, handshake::Hello{.from = 2},
        handshake::Hello{.from = 1, .to = 1},
        handshake::Hello{.from = 1, .connection = 2},
        handshake::Hello{.magic = 1, .from = 1}}) {
    Stranger s(Port());
    s.Send(&bad, sizeof(bad));
    EXPECT_TRUE(s.HungUp());
  }
  ExpectToMeet();
}

TEST_F(AuthenticatedListenerTest, WhoHasNoProofIsHungUpOn) {
  SetPeers();
  Stranger s(Port());
  const handshake::Hello hello = HelloOfOne();
  s.Send(&hello, sizeof(hello));
  handshake::Answer answer;
  ASSERT_EQ(s.Read(&answer, sizeof(answer)), sizeof(answer));
  const handshake::Proof zeros = {};
  s.Send(&zeros, sizeof(zeros));
  EXPECT_TRUE(s.HungUp());
  ExpectToMeet();
}

TEST_F(AuthenticatedListenerTest, WhatTheGateSaysIsNoProofWhenItIsSentBack) {
  SetPeers();
  Stranger s(Port());
  const handshake::Hello hello = HelloOfOne();
  s.Send(&hello, sizeof(hello));
  handshake::Answer answer;
  ASSERT_EQ(s.Read(&answer, sizeof(answer)), sizeof(answer));
  s.Send(&answer.proof, sizeof(answer.proof));
  EXPECT_TRUE(s.HungUp());
  // Nor as the challenge of another connection.
  Stranger again(Port());
  handshake::Hello reflected = HelloOfOne();
  reflected.challenge = answer.challenge;
  again.Send(&reflected, sizeof(reflected));
  handshake::Answer second;
  ASSERT_EQ(again.Read(&second, sizeof(second)), sizeof(second));
  EXPECT_FALSE(handshake::Same(second.proof, answer.proof));
  again.Send(&second.proof, sizeof(second.proof));
  EXPECT_TRUE(again.HungUp());
  ExpectToMeet();
}

TEST_F(AuthenticatedListenerTest, HalfOpenStrangersHoldNobodyUp) {
  std::vector<std::unique_ptr<Stranger>> before, after;
  for (int i = 0; i < 60; ++i) {
    before.push_back(std::make_unique<Stranger>(Port()));
  }
  SetPeers();
  for (size_t i = 0; i < kMaxPendingHandshakes + 40; ++i) {
    after.push_back(std::make_unique<Stranger>(Port()));
    if (i % 2 == 0) after.back()->Send("half a hello", 12);
  }
  ExpectToMeet();
}

TEST_F(AuthenticatedListenerTest, ANodeOfAnotherEpochIsAStranger) {
  auto late = Open(1, 6);
  // The two know each other's secrets, and still their keys are not the same.
  ASSERT_EQ(zero_->SetPeers({"", late->AddressFor(0)}), nullptr);
  ASSERT_EQ(late->SetPeers({zero_->AddressFor(1), ""}), nullptr);
  const auto fd = late->Connection(0, 0, In(seconds(10)));
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kPermissionDenied)
      << fd.status();
}

TEST_F(AuthenticatedListenerTest, WhoDoesNotComeIsSaid) {
  SetPeers();
  const auto fd = zero_->Connection(1, 0, In(milliseconds(50)));
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(fd.status().message().find("it has not connected to 127.0.0.1:"),
            std::string::npos)
      << fd.status();
}

TEST_F(AuthenticatedListenerTest, AfterClosingNobodyListens) {
  SetPeers();
  zero_.reset();
  ASSERT_EQ(one_->SetPeers({Open(0)->AddressFor(1), ""}), nullptr);
  const auto fd = one_->Connection(0, 0, In(seconds(10)));
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(fd.status().message().find("Connection refused"), std::string::npos)
      << fd.status();
}

TEST_F(AuthenticatedListenerTest, CloseEndsWaits) {
  SetPeers();
  absl::Status status;
  std::thread waiter(
      [&] { status = zero_->Connection(1, 0, In(seconds(60))).status(); });
  zero_->Close();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

TEST_F(AuthenticatedListenerTest, OffersThatAreNoneAreNamed) {
  for (const std::string& bad :
       {std::string(), std::string("nonsense"), std::string(36, '\0'),
        std::string(1000, 'x')}) {
    auto listener = Open(0);
    const auto offer = listener->SetPeers({"", bad});
    ASSERT_NE(offer, nullptr);
    EXPECT_EQ(offer->node, 1u);
  }
}

TEST_F(AuthenticatedListenerTest, AModeThatThereIsNotIsNoOffer) {
  std::string offer = Open(1)->AddressFor(0);
  offer[0] = static_cast<char>(offer[0] | 0x30);
  const auto bad = zero_->SetPeers({"", offer});
  ASSERT_NE(bad, nullptr);
  EXPECT_NE(bad->why.find("its address is invalid"), std::string::npos);
}

// Its proof is only that of other offers, with which nobody gets in.
TEST_F(AuthenticatedListenerTest, WhoCallsWithAnotherModeGetsNotIn) {
  SetPeers();
  Stranger s(Port());
  handshake::Hello hello = HelloOfOne();
  hello.caller = EncryptionMode::kRequire;
  s.Send(&hello, sizeof(hello));
  handshake::Answer answer;
  ASSERT_EQ(s.Read(&answer, sizeof(answer)), sizeof(answer));
  s.Send(&answer.proof, sizeof(answer.proof));
  EXPECT_TRUE(s.HungUp());
  ExpectToMeet();  // and it is not taken for the peer
}

// A name would be looked up by a thread that nothing can end.
TEST_F(AuthenticatedListenerTest, OffersAreOfAddressesNotNames) {
  const std::string head(35, '\2');  // connections, secret, port
  for (const std::string name :
       {"localhost", "host.example", "127.0.0.1 ", "1", "%lo", "[::1]"}) {
    const auto bad = Open(0)->SetPeers({"", head + name});
    ASSERT_NE(bad, nullptr) << name;
    EXPECT_NE(bad->why.find("its address is invalid"), std::string::npos);
  }
  for (const std::string numeric : {"127.0.0.1", "::1", "fe80::1%lo"}) {
    EXPECT_EQ(Open(0)->SetPeers({"", head + numeric}), nullptr) << numeric;
  }
}

// The listener gets the last descriptor: nothing is left to wake the thread by.
TEST(AuthenticatedListener, WithoutRoomForAllOfItsDescriptorsItDoesNotOpen) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = Fd(dup(0)).get();
  ASSERT_GE(next, 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto listener =
      AuthenticatedListener::Open({.hosts = {"127.0.0.1"}, .nodes = 2});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(listener.ok());
  EXPECT_NE(listener.status().message().find("ulimit -n"), std::string::npos)
      << listener.status();
}

// Pairs of connections, each to and from an address.
TEST(AuthenticatedListener, SeveralAddressesAreUsedInTurn) {
  const std::vector<std::string> hosts[2] = {{"127.0.0.1", "127.0.0.2"},
                                             {"127.0.0.3", "127.0.0.4"}};
  std::unique_ptr<AuthenticatedListener> listeners[2];
  for (uint32_t i = 0; i < 2; ++i) {
    auto listener = AuthenticatedListener::Open(
        {.hosts = hosts[i], .self = i, .nodes = 2, .connections = 5});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listeners[i] = *std::move(listener);
  }
  ASSERT_EQ(listeners[0]->SetPeers({"", listeners[1]->AddressFor(0)}), nullptr);
  ASSERT_EQ(listeners[1]->SetPeers({listeners[0]->AddressFor(1), ""}), nullptr);
  for (uint32_t c = 0; c < 5; ++c) {
    const auto called = listeners[1]->Connection(0, c, In(seconds(10)));
    ASSERT_TRUE(called.ok()) << called.status();
    const auto accepted = listeners[0]->Connection(1, c, In(seconds(10)));
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    for (uint32_t i = 0; i < 2; ++i) {
      const Fd& socket = i == 0 ? accepted->socket : called->socket;
      sockaddr_in own{};
      socklen_t size = sizeof(own);
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size);
      EXPECT_EQ(inet_ntoa(own.sin_addr), hosts[i][c / 2 % 2]) << c;
    }
  }
}

TEST(AuthenticatedListener, AnAddressThatIsNotOursIsNamed) {
  auto a = AuthenticatedListener::Open(
      {.hosts = {"127.0.0.1"}, .self = 0, .nodes = 2});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_FALSE(
      AuthenticatedListener::Open({.hosts = {}, .self = 1, .nodes = 2}).ok());
  EXPECT_FALSE(AuthenticatedListener::Open(
                   {.hosts = {"127.0.0.1", "192.0.2.1"}, .self = 1, .nodes = 2})
                   .ok());
  // Too short, a name, a byte that is not printable, too many.
  const std::string offer = (*a)->AddressFor(1);
  const std::string second = std::string("\0\x10\x10", 3) + "127.0.0.1";
  for (const std::string& more :
       {std::string("\0", 1), std::string("\0\x10\x10", 3),
        std::string("\0\x10\x10", 3) + "localhost", second + "\x01"}) {
    EXPECT_NE((*a)->SetPeers({"", offer + more}), nullptr) << more;
  }
  std::string many = offer;
  for (int i = 0; i < 15; ++i) many += second;
  EXPECT_NE((*a)->SetPeers({"", many}), nullptr);
}

}  // namespace
}  // namespace maypole::worker
