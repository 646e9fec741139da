#include "worker/network/peer_channels.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "worker/backend/testing/peer_sockets.h"

namespace maypole::worker {
namespace {

proto::PeerMessage Ready(uint64_t position, size_t bytes = 0) {
  proto::PeerMessage m;
  m.set_schedule(1);
  if (bytes == 0) {
    m.set_ready(position);
  } else {
    m.mutable_refusal()->set_from(position);
    m.mutable_refusal()->set_text(std::string(bytes, 'x'));
  }
  return m;
}

// Nodes 0 and 1, in the clear and encrypted.
class PeerChannelsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto [one, other] = ConnectedSockets(GetParam());
    raw_ = other.fd();
    std::vector<PeerStream> of_a(2);
    std::vector<PeerStream> of_b(2);
    of_a[1] = std::move(one);
    of_b[0] = std::move(other);
    a_ = std::make_unique<PeerChannels>(std::move(of_a), names_);
    b_ = std::make_unique<PeerChannels>(std::move(of_b), names_);
  }
  static bool Readable(const PeerChannels& channels) {
    pollfd p{channels.fd(), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
  }
  const std::vector<std::string> names_{"node n0 (host a)", "node n1 (host b)"};
  int raw_ = -1;  // of b_
  std::unique_ptr<PeerChannels> a_;
  std::unique_ptr<PeerChannels> b_;
};

TEST_P(PeerChannelsTest, MessagesArriveInOrder) {
  EXPECT_FALSE(Readable(*b_));
  for (uint64_t i = 0; i < 100; ++i) a_->Send({1}, Ready(i));
  EXPECT_TRUE(Readable(*b_));
  const auto got = b_->Receive();
  ASSERT_EQ(got.size(), 100u);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(got[i].first, 0u);
    EXPECT_EQ(got[i].second.ready(), i);
  }
  EXPECT_FALSE(Readable(*b_));
  EXPECT_TRUE(b_->Receive().empty());
}

TEST_P(PeerChannelsTest, WhatASocketDoesNotAcceptIsSentLater) {
  const size_t large = 300000;
  for (uint64_t i = 0; i < 20; ++i) a_->Send({1}, Ready(i, large));
  uint64_t next = 0;
  while (next < 20) {
    for (const auto& [node, message] : b_->Receive()) {
      EXPECT_EQ(message.refusal().from(), next++);
      EXPECT_EQ(message.refusal().text().size(), large);
    }
    EXPECT_TRUE(next == 20 || Readable(*a_));
    EXPECT_TRUE(a_->Receive().empty());  // which also sends
    ASSERT_TRUE(a_->status().ok()) << a_->status();
  }
}

TEST_P(PeerChannelsTest, AnEndIsNamedAfterTheLastMessage) {
  a_->Send({1}, Ready(7));
  a_.reset();
  const auto got = b_->Receive();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].second.ready(), 7u);
  while (b_->status().ok()) b_->Receive();
  EXPECT_EQ(b_->status().message(),
            "the connection to node n0 (host a) failed: closed by the other "
            "side");
  b_->Send({0}, Ready(8));  // has no effect
  EXPECT_FALSE(Readable(*b_));
}

TEST_P(PeerChannelsTest, AMessageThatIsTooLongBreaksTheConnection) {
  const char header[] = {0, 0, 0, 0x7f, 0};  // as long as that of a TLS record
  ASSERT_EQ(send(raw_, header, sizeof(header), 0), 5);
  EXPECT_TRUE(a_->Receive().empty());
  EXPECT_EQ(a_->status().message(),
            GetParam() ? "the connection to node n1 (host b) failed: " +
                             ConnectionErrorText(EBADMSG)
                       : "the connection to node n1 (host b) failed: a message "
                         "is malformed");
}

TEST_P(PeerChannelsTest, APeerThatDoesNotReadBreaksItsConnection) {
  const size_t large = 1000000;
  for (size_t i = 0; i < 2 + kMaxPeerBacklogBytes / large; ++i) {
    a_->Send({1}, Ready(i, large));
  }
  EXPECT_EQ(a_->status().message(),
            "the connection to node n1 (host b) failed: it does not read what "
            "is sent to it");
}

INSTANTIATE_TEST_SUITE_P(Modes, PeerChannelsTest, testing::Bool(),
                         [](const auto& mode) {
                           return mode.param ? "Encrypted" : "Clear";
                         });

}  // namespace
}  // namespace maypole::worker
