#include "worker/backend/tcp_transport.h"

#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace maypole::worker {
namespace {

using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

constexpr auto kPatience = std::chrono::seconds(20);

std::pair<Fd, Fd> Connection() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

void Connect(TcpTransport& a, int index_of_b, TcpTransport& b, int index_of_a) {
  auto [one, other] = Connection();
  a.Adopt(index_of_b, std::move(one));
  b.Adopt(index_of_a, std::move(other));
}

Buffer Make(TcpTransport& transport, std::string& text) {
  return transport.createUnboundBuffer(text.data(), text.size());
}

// Nodes 0 and 1.
class TcpTransportTest : public testing::Test {
 protected:
  TcpTransportTest() { Connect(a_, 1, b_, 0); }

  // What node 1 says when something fails.
  template <typename F>
  static std::string Failure(F&& f) {
    try {
      f();
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "nothing";
  }

  TcpTransport a_{0, 2};
  TcpTransport b_{1, 2};
};

TEST_F(TcpTransportTest, MessagesComeInOrderWithinTheirSlots) {
  std::string sent[] = {"one", "two", "uno"};
  const uint64_t slots[] = {7, 7, 9};
  std::vector<Buffer> sends;
  for (int i = 0; i < 3; ++i) {
    sends.push_back(Make(a_, sent[i]));
    sends[static_cast<size_t>(i)]->send(1, slots[i]);
  }
  for (Buffer& b : sends) EXPECT_TRUE(b->waitSend(nullptr, kPatience));
  // Receive the last message first; the ones before it are kept meanwhile.
  std::string got[] = {"...", "...", "..."};
  for (const int i : {2, 0, 1}) {
    const Buffer to = Make(b_, got[i]);
    to->recv(0, slots[i]);
    EXPECT_TRUE(to->waitRecv(nullptr, kPatience));
    EXPECT_EQ(got[i], sent[i]);
  }
}

TEST_F(TcpTransportTest, LargeMessagesBothWaysAtOnce) {
  std::vector<uint32_t> mine(5 << 20), theirs(5 << 20), got(5 << 20),
      others(5 << 20);
  std::iota(mine.begin(), mine.end(), 1u);
  std::iota(theirs.begin(), theirs.end(), 1000u);
  const size_t bytes = mine.size() * 4;
  const Buffer to_b = a_.createUnboundBuffer(mine.data(), bytes);
  const Buffer to_a = b_.createUnboundBuffer(theirs.data(), bytes);
  const Buffer at_a = a_.createUnboundBuffer(got.data(), bytes);
  const Buffer at_b = b_.createUnboundBuffer(others.data(), bytes);
  at_a->recv(1, 1);
  to_b->send(1, 1);
  to_a->send(0, 1);
  at_b->recv(0, 1);  // part of it has come by now
  for (const Buffer* b : {&to_b, &to_a}) {
    EXPECT_TRUE((*b)->waitSend(nullptr, kPatience));
  }
  EXPECT_TRUE(at_a->waitRecv(nullptr, kPatience));
  EXPECT_TRUE(at_b->waitRecv(nullptr, kPatience));
  EXPECT_EQ(got, theirs);
  EXPECT_EQ(others, mine);
}

TEST_F(TcpTransportTest, APeerThatClosesFailsWhatIsPostedAndWhatComesLater) {
  std::string text = "text";
  const Buffer posted = Make(b_, text);
  posted->recv(0, 1);
  a_.Close();
  EXPECT_EQ(Failure([&] { posted->waitRecv(nullptr, kPatience); }),
            "the peer has closed it");
  EXPECT_EQ(Failure([&] { posted->recv(0, 1); }), "the peer has closed it");
  EXPECT_EQ(Failure([&] { posted->send(0, 1); }), "the peer has closed it");
}

TEST_F(TcpTransportTest, WhatHadComeBeforeTheEndIsGiven) {
  std::string text = "text", got = "....";
  {
    const Buffer from = Make(a_, text);
    from->send(1, 1);
    EXPECT_TRUE(from->waitSend(nullptr, kPatience));
  }
  std::string more = "more";
  const Buffer posted = Make(b_, got), never = Make(b_, more);
  posted->recv(0, 1);
  EXPECT_TRUE(posted->waitRecv(nullptr, kPatience));
  EXPECT_EQ(got, "text");
}

TEST_F(TcpTransportTest, AnAbortEndsOneWaitAndLeavesTheConnection) {
  std::string text = "text", got = "....";
  const Buffer posted = Make(b_, got);
  posted->recv(0, 1);
  posted->abortWaitRecv();
  EXPECT_FALSE(posted->waitRecv(nullptr, kPatience));
  const Buffer from = Make(a_, text);
  from->send(1, 1);
  EXPECT_TRUE(posted->waitRecv(nullptr, kPatience));
  EXPECT_EQ(got, "text");
}

TEST_F(TcpTransportTest, AMessageOfAnotherSizeFailsTheConnection) {
  std::string text = "text", got = "...";
  const Buffer posted = Make(b_, got), from = Make(a_, text);
  posted->recv(0, 1);
  from->send(1, 1);
  EXPECT_EQ(Failure([&] { posted->waitRecv(nullptr, kPatience); }),
            "it sends a message of another size than was expected");
  EXPECT_EQ(got, "...");
}

// If the connection closed, the peer would consider this node lost.
TEST(TcpTransportGivenUpTest, APeerDoesNotHearOfAMessageThatIsGivenUp) {
  TcpTransport node(0, 2);
  auto [mine, theirs] = Connection();
  node.Adopt(1, std::move(mine));
  std::string large(16 << 20, 'x'), small = "small";
  Buffer from = Make(node, large);
  from->send(1, 1);  // more than the socket takes
  const Buffer after = Make(node, small);
  after->send(1, 2);
  from.reset();
  EXPECT_THROW(after->waitSend(nullptr, kPatience), std::runtime_error);
  std::vector<char> got(1 << 20);
  ssize_t n = 1;
  while (n > 0) n = recv(theirs.get(), got.data(), got.size(), MSG_DONTWAIT);
  EXPECT_EQ(n, -1);  // nothing more, and no end
  node.Close();
  EXPECT_EQ(recv(theirs.get(), got.data(), got.size(), 0), 0);
}

// A hostile peer: no memory is allocated for the size that it announces.
TEST(TcpTransportHostileTest, NonsenseFailsItsConnectionOnly) {
  TcpTransport node(0, 3);
  TcpTransport honest(2, 3);
  Connect(node, 2, honest, 0);
  auto [mine, theirs] = Connection();
  node.Adopt(1, std::move(mine));
  std::string got = "....";
  const Buffer posted = Make(node, got);
  posted->recv(1, 1);
  const uint64_t header[] = {77, uint64_t{1} << 62};
  ASSERT_EQ(write(theirs.get(), header, sizeof(header)),
            static_cast<ssize_t>(sizeof(header)));
  EXPECT_THROW(posted->waitRecv(nullptr, kPatience), std::runtime_error);
  std::string text = "text", good = "....";
  const Buffer from = Make(honest, text), to = Make(node, good);
  from->send(0, 5);
  to->recv(2, 5);
  EXPECT_TRUE(to->waitRecv(nullptr, kPatience));
  EXPECT_EQ(good, "text");
}

TEST(TcpTransportHostileTest, AMessageThatNobodyAsksForHasABound) {
  TcpTransport node(0, 2);
  auto [mine, theirs] = Connection();
  node.Adopt(1, std::move(mine));
  std::string got = "....";
  const Buffer posted = Make(node, got);
  posted->recv(1, 1);
  const uint64_t large[] = {9, kDefaultEarlyBytes + 1};
  ASSERT_GT(write(theirs.get(), large, sizeof(large)), 0);
  try {
    posted->waitRecv(nullptr, kPatience);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "it sends more than was expected");
  }
}

// A sender that is far ahead waits; what it has sent comes in order.
TEST(TcpTransportEarlyTest, OnlySoMuchIsReadAhead) {
  constexpr size_t kMessages = 100;
  const std::string text(1 << 20, 'x');
  TcpTransport a(0, 2);
  TcpTransport b(1, 2, std::make_shared<TcpLoop>(), 4 << 20);
  Connect(a, 1, b, 0);
  std::vector<std::string> sent(kMessages, text);
  std::vector<Buffer> sends;
  for (size_t i = 0; i < kMessages; ++i) {
    sent[i][0] = static_cast<char>(i);
    sends.push_back(Make(a, sent[i]));
    sends[i]->send(1, 7);
  }
  EXPECT_TRUE(sends[0]->waitSend(nullptr, kPatience));
  EXPECT_THROW(sends.back()->waitSend(std::chrono::milliseconds(200)),
               std::runtime_error);
  std::string got(text.size(), '.');
  for (size_t i = 0; i < kMessages; ++i) {
    const Buffer to = Make(b, got);
    to->recv(0, 7);
    ASSERT_TRUE(to->waitRecv(nullptr, kPatience));
    ASSERT_EQ(got, sent[i]) << "message " << i;
  }
  EXPECT_TRUE(sends.back()->waitSend(nullptr, kPatience));
}

}  // namespace
}  // namespace maypole::worker
