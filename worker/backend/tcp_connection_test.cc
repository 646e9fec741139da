#include "worker/backend/tcp_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/tcp_loop.h"
#include "worker/backend/testing/peer_sockets.h"

namespace maypole::worker {
namespace {

constexpr std::chrono::milliseconds kPatience(20000);
constexpr uint64_t kEarlyBytes = uint64_t{1} << 30;
constexpr char kOtherSize[] =
    "it sends a message of another size than was expected";

// A node's ends of some connections, which share a loop.
class Node {
 public:
  explicit Node(size_t connections = 1, uint64_t early_bytes = kEarlyBytes)
      : failures_(connections), loop_(std::make_unique<TcpLoop>()) {
    for (size_t i = 0; i < connections; ++i) {
      connections_.push_back(std::make_unique<TcpConnection>(
          loop_.get(), early_bytes, [this, i](const std::string& why) {
            std::lock_guard lock(mutex_);
            failures_[i].push_back(why);
          }));
    }
  }
  ~Node() {
    for (const auto& connection : connections_) connection->Close();
    loop_.reset();
  }
  TcpConnection& operator[](size_t i) { return *connections_[i]; }
  // The calls of on_failed.
  std::vector<std::string> Failures(size_t i) {
    std::lock_guard lock(mutex_);
    return failures_[i];
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<std::string>> failures_;
  std::unique_ptr<TcpLoop> loop_;
  std::vector<std::unique_ptr<TcpConnection>> connections_;
};

void Connect(TcpConnection& a, TcpConnection& b, bool encrypted = false) {
  auto [one, other] = ConnectedSockets(encrypted);
  a.Adopt(std::move(one));
  b.Adopt(std::move(other));
}

// One send or receive of some memory, whose end the test awaits.
class Message : private TransferListener {
 public:
  Message(TcpConnection& end, std::span<std::byte> memory)
      : end_(end), memory_(memory) {}
  Message(TcpConnection& end, std::string& text)
      : Message(end, std::as_writable_bytes(std::span(text))) {}
  Message(TcpConnection& end, std::vector<uint32_t>& numbers)
      : Message(end, std::as_writable_bytes(std::span(numbers))) {}
  // Cancels it if it has not ended.
  ~Message() {
    if (!posted_) return;
    Cancel();
    EXPECT_NE(Await(), kNotEnded);
  }

  void Send(uint64_t slot) {
    posted_ = true;
    end_.Send(slot, memory_.data(), memory_.size(), {this, kTag});
  }
  void Receive(uint64_t slot) {
    posted_ = true;
    end_.Receive(slot, memory_.data(), memory_.size(), {this, kTag});
  }
  void Cancel() { end_.Cancel(this); }
  // Why it failed; empty if it did not.
  std::string Await(std::chrono::milliseconds patience = kPatience) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience,
                           [this] { return end_text_.has_value(); })) {
      return kNotEnded;
    }
    return *end_text_;
  }

  static constexpr char kNotEnded[] = "it has not ended";

 private:
  static constexpr uint64_t kTag = 42;

  void OnEnded(uint64_t tag, const std::string& failure) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(tag, kTag);
    EXPECT_FALSE(end_text_) << "a second end";
    end_text_ = failure;
    changed_.notify_all();
  }

  TcpConnection& end_;
  const std::span<std::byte> memory_;
  bool posted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> end_text_;
};

// Nodes a and b; in the clear and encrypted.
class TcpConnectionTest : public testing::TestWithParam<bool> {
 protected:
  TcpConnectionTest() { Connect(a_[0], b_[0], GetParam()); }

  Node a_;
  Node b_;
};

TEST_P(TcpConnectionTest, MessagesComeInOrderWithinTheirSlots) {
  std::string sent[] = {"one", "two", "uno"};
  const uint64_t slots[] = {7, 7, 9};
  std::vector<std::unique_ptr<Message>> sends;
  for (size_t i = 0; i < 3; ++i) {
    sends.push_back(std::make_unique<Message>(a_[0], sent[i]));
    sends[i]->Send(slots[i]);
  }
  for (const auto& send : sends) EXPECT_EQ(send->Await(), "");
  // Receive the last message first; the ones before it are kept meanwhile.
  std::string got[] = {"...", "...", "..."};
  for (const int i : {2, 0, 1}) {
    Message to(b_[0], got[i]);
    to.Receive(slots[i]);
    EXPECT_EQ(to.Await(), "");
    EXPECT_EQ(got[i], sent[i]);
  }
}

TEST_P(TcpConnectionTest, LargeMessagesBothWaysAtOnce) {
  std::vector<uint32_t> mine(5 << 20), theirs(5 << 20), got(5 << 20),
      others(5 << 20);
  std::iota(mine.begin(), mine.end(), 1u);
  std::iota(theirs.begin(), theirs.end(), 1000u);
  Message to_b(a_[0], mine), to_a(b_[0], theirs), at_a(a_[0], got),
      at_b(b_[0], others);
  at_a.Receive(1);
  to_b.Send(1);
  to_a.Send(1);
  at_b.Receive(1);  // part of it has come by now
  for (Message* m : {&to_b, &to_a, &at_a, &at_b}) EXPECT_EQ(m->Await(), "");
  EXPECT_EQ(got, theirs);
  EXPECT_EQ(others, mine);
}

TEST_P(TcpConnectionTest, APeerThatClosesFailsWhatIsPostedAndWhatComesLater) {
  std::string text = "text";
  Message posted(b_[0], text), receive(b_[0], text), send(b_[0], text);
  posted.Receive(1);
  a_[0].Close();
  EXPECT_EQ(posted.Await(), "the peer has closed it");
  receive.Receive(1);
  EXPECT_EQ(receive.Await(), "the peer has closed it");
  send.Send(1);
  EXPECT_EQ(send.Await(), "the peer has closed it");
  EXPECT_EQ(b_.Failures(0), std::vector<std::string>{"the peer has closed it"});
}

TEST_P(TcpConnectionTest, AFailureIsReportedOnceThoughNothingIsPosted) {
  a_[0].Close();
  while (b_.Failures(0).empty()) usleep(1000);
  b_[0].Close();
  EXPECT_EQ(a_.Failures(0), std::vector<std::string>{"closed"});
  EXPECT_EQ(b_.Failures(0), std::vector<std::string>{"the peer has closed it"});
}

TEST(TcpConnectionClosedTest, ASocketThatComesAfterTheEndIsClosed) {
  Node node;
  node[0].Close();
  auto [mine, theirs] = SocketPair();
  node[0].Adopt(PeerSocket(std::move(mine)));
  char byte;
  EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
}

TEST_P(TcpConnectionTest, WhatHadComeBeforeTheEndIsGiven) {
  std::string text = "text", got = "....";
  {
    Message from(a_[0], text);
    from.Send(1);
    EXPECT_EQ(from.Await(), "");
  }
  Message posted(b_[0], got);
  posted.Receive(1);
  EXPECT_EQ(posted.Await(), "");
  EXPECT_EQ(got, "text");
}

TEST_P(TcpConnectionTest, ACancellationEndsOneReceiveAndLeavesTheConnection) {
  std::string text = "text", got = "....", other = "....";
  Message cancelled(b_[0], got), posted(b_[0], other);
  cancelled.Receive(1);
  posted.Receive(1);
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Await(), "cancelled");
  Message from(a_[0], text);
  from.Send(1);
  EXPECT_EQ(posted.Await(), "");
  EXPECT_EQ(other, "text");
  EXPECT_EQ(got, "....");
  EXPECT_TRUE(b_.Failures(0).empty());
}

TEST_P(TcpConnectionTest, AMessageOfAnotherSizeFailsTheConnection) {
  std::string text = "text", got = "...";
  Message posted(b_[0], got), from(a_[0], text);
  posted.Receive(1);
  from.Send(1);
  EXPECT_EQ(posted.Await(), kOtherSize);
  EXPECT_EQ(got, "...");
}

// If the connection closed, the peer would consider this node lost.
TEST(TcpConnectionGivenUpTest, APeerDoesNotHearOfAMessageThatIsGivenUp) {
  Node node;
  auto [mine, theirs] = SocketPair();
  node[0].Adopt(PeerSocket(std::move(mine)));
  std::string large(16 << 20, 'x'), small = "small";
  Message from(node[0], large), after(node[0], small);
  from.Send(1);  // more than the socket takes
  after.Send(2);
  from.Cancel();
  EXPECT_EQ(from.Await(), "a message was cancelled half-way");
  EXPECT_EQ(after.Await(), "a message was cancelled half-way");
  std::vector<char> got(1 << 20);
  ssize_t n = 1;
  while (n > 0) n = recv(theirs.get(), got.data(), got.size(), MSG_DONTWAIT);
  EXPECT_EQ(n, -1);  // nothing more, and no end
  node[0].Close();
  EXPECT_EQ(recv(theirs.get(), got.data(), got.size(), 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, TcpConnectionTest, testing::Bool(),
                         [](const auto& mode) {
                           return mode.param ? "Encrypted" : "Clear";
                         });

// A hostile peer: no memory is allocated for the size that it announces.
TEST(TcpConnectionHostileTest, NonsenseFailsItsConnectionOnly) {
  Node node(2), honest;
  Connect(node[1], honest[0]);
  auto [mine, theirs] = SocketPair();
  node[0].Adopt(PeerSocket(std::move(mine)));
  std::string got = "....";
  Message posted(node[0], got);
  posted.Receive(1);
  const uint64_t header[] = {77, uint64_t{1} << 62};
  ASSERT_EQ(write(theirs.get(), header, sizeof(header)),
            static_cast<ssize_t>(sizeof(header)));
  EXPECT_EQ(posted.Await(), "it sends more than was expected");
  std::string text = "text", good = "....";
  Message from(honest[0], text), to(node[1], good);
  from.Send(5);
  to.Receive(5);
  EXPECT_EQ(to.Await(), "");
  EXPECT_EQ(good, "text");
}

TEST(TcpConnectionHostileTest, AMessageThatNobodyAsksForHasABound) {
  Node node;
  auto [mine, theirs] = SocketPair();
  node[0].Adopt(PeerSocket(std::move(mine)));
  std::string got = "....";
  Message posted(node[0], got);
  posted.Receive(1);
  const uint64_t large[] = {9, kEarlyBytes + 1};
  ASSERT_GT(write(theirs.get(), large, sizeof(large)), 0);
  EXPECT_EQ(posted.Await(), "it sends more than was expected");
}

class TcpConnectionEarlyTest : public testing::TestWithParam<bool> {};

// A sender that is far ahead waits; what it has sent comes in order.
TEST_P(TcpConnectionEarlyTest, OnlySoMuchIsReadAhead) {
  constexpr size_t kMessages = 100;
  const std::string text(1 << 20, 'x');
  Node a;
  Node b(1, 4 << 20);
  Connect(a[0], b[0], GetParam());
  std::vector<std::string> sent(kMessages, text);
  std::vector<std::unique_ptr<Message>> sends;
  for (size_t i = 0; i < kMessages; ++i) {
    sent[i][0] = static_cast<char>(i);
    sends.push_back(std::make_unique<Message>(a[0], sent[i]));
    sends[i]->Send(7);
  }
  EXPECT_EQ(sends[0]->Await(), "");
  EXPECT_EQ(sends.back()->Await(std::chrono::milliseconds(200)),
            Message::kNotEnded);
  std::string got(text.size(), '.');
  for (size_t i = 0; i < kMessages; ++i) {
    Message to(b[0], got);
    to.Receive(7);
    ASSERT_EQ(to.Await(), "");
    ASSERT_EQ(got, sent[i]) << "message " << i;
  }
  EXPECT_EQ(sends.back()->Await(), "");
}

// Some small messages at once: if they have come together, the kernel does not
// tell of the later ones.
TEST_P(TcpConnectionEarlyTest, SmallMessagesAreReadAheadOneByOne) {
  Node a;
  Node b(1, 8);
  Connect(a[0], b[0], GetParam());
  std::vector<std::string> sent(200);
  std::vector<std::unique_ptr<Message>> sends;
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = "no " + std::to_string(i);
    sends.push_back(std::make_unique<Message>(a[0], sent[i]));
    sends[i]->Send(3);
  }
  for (const std::string& text : sent) {
    std::string got(text.size(), '.');
    Message to(b[0], got);
    to.Receive(3);
    ASSERT_EQ(to.Await(), "");
    ASSERT_EQ(got, text);
  }
}

// Many sends and receives in random orders and sizes, both ways; threads post
// and cancel while the loops move data.
TEST_P(TcpConnectionEarlyTest, MessagesOfAllSizesBothWays) {
  constexpr size_t kMessages = 400;
  Node a;
  Node b;
  Connect(a[0], b[0], GetParam());
  const auto size_of = [](size_t i) { return i * 7919 % 70000 * (i % 3); };
  const auto play = [&](TcpConnection& end, char own, char other) {
    std::mt19937 random(static_cast<unsigned>(own));
    std::vector<std::string> sent(kMessages), got(kMessages);
    std::vector<std::unique_ptr<Message>> sends, receives;
    std::string never = "....";
    for (size_t i = 0; i < kMessages; ++i) {
      sent[i] = std::string(size_of(i), static_cast<char>(own + i));
      got[i] = std::string(size_of(i), '.');
    }
    for (size_t i = 0; i < kMessages; ++i) {
      sends.push_back(std::make_unique<Message>(end, sent[i]));
      receives.push_back(std::make_unique<Message>(end, got[i]));
      if (random() % 2 == 0) {
        sends[i]->Send(i % 5);
        receives[i]->Receive(i % 5);
      } else {
        receives[i]->Receive(i % 5);
        sends[i]->Send(i % 5);
      }
      Message cancelled(end, never);
      cancelled.Receive(99);
      cancelled.Cancel();
    }
    for (size_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(sends[i]->Await(), "");
      ASSERT_EQ(receives[i]->Await(), "");
      const std::string want(size_of(i), static_cast<char>(other + i));
      ASSERT_EQ(got[i] == want, true) << "message " << i;
    }
  };
  std::thread one([&] { play(a[0], 'a', 'k'); });
  play(b[0], 'k', 'a');
  one.join();
}

INSTANTIATE_TEST_SUITE_P(Modes, TcpConnectionEarlyTest, testing::Bool(),
                         [](const auto& mode) {
                           return mode.param ? "Encrypted" : "Clear";
                         });

// As after a stranger has written into a connection.
TEST(TcpConnectionTlsTest, ForeignBytesFailTheConnection) {
  Node node;
  auto [mine, theirs] = ConnectedSockets(/*encrypted=*/true);
  const int raw = theirs.fd();
  node[0].Adopt(std::move(mine));
  std::string got = "....";
  Message posted(node[0], got);
  posted.Receive(1);
  ASSERT_EQ(write(raw, "GET / HTTP/1.1", 14), 14);
  EXPECT_NE(posted.Await().find("what has arrived is not what it has sent"),
            std::string::npos);
  EXPECT_EQ(got, "....");
}

// A send whose last bytes are encrypted, but not with the kernel, has not
// ended; if it is given up, so is the connection.
TEST(TcpConnectionTlsTest, WhatIsEncryptedAndNotSentHasNotEnded) {
  Node node;
  auto [mine, theirs] = ConnectedSockets(/*encrypted=*/true);
  node[0].Adopt(std::move(mine));
  std::vector<std::unique_ptr<Message>> sends;
  std::string text(50000, 'x');
  while (sends.empty() ||
         sends.back()->Await(std::chrono::milliseconds(50)) == std::string()) {
    sends.push_back(std::make_unique<Message>(node[0], text));
    sends.back()->Send(1);
  }
  sends.back()->Cancel();
  EXPECT_EQ(sends.back()->Await(), "a message was cancelled half-way");
}

}  // namespace
}  // namespace maypole::worker
