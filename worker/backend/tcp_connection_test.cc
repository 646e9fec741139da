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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/tcp_loop.h"

namespace maypole::worker {
namespace {

constexpr std::chrono::milliseconds kPatience(20000);
constexpr uint64_t kEarlyBytes = uint64_t{1} << 30;
constexpr char kOtherSize[] =
    "it sends a message of another size than was expected";

std::pair<Fd, Fd> SocketPair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

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

void Connect(TcpConnection& a, TcpConnection& b) {
  auto [one, other] = SocketPair();
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

// Nodes a and b.
class TcpConnectionTest : public testing::Test {
 protected:
  TcpConnectionTest() { Connect(a_[0], b_[0]); }

  Node a_;
  Node b_;
};

TEST_F(TcpConnectionTest, MessagesComeInOrderWithinTheirSlots) {
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

TEST_F(TcpConnectionTest, LargeMessagesBothWaysAtOnce) {
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

TEST_F(TcpConnectionTest, APeerThatClosesFailsWhatIsPostedAndWhatComesLater) {
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

TEST_F(TcpConnectionTest, AFailureIsReportedOnceThoughNothingIsPosted) {
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
  node[0].Adopt(std::move(mine));
  char byte;
  EXPECT_EQ(recv(theirs.get(), &byte, 1, 0), 0);
}

TEST_F(TcpConnectionTest, WhatHadComeBeforeTheEndIsGiven) {
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

TEST_F(TcpConnectionTest, ACancellationEndsOneReceiveAndLeavesTheConnection) {
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

TEST_F(TcpConnectionTest, AMessageOfAnotherSizeFailsTheConnection) {
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
  node[0].Adopt(std::move(mine));
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

// A hostile peer: no memory is allocated for the size that it announces.
TEST(TcpConnectionHostileTest, NonsenseFailsItsConnectionOnly) {
  Node node(2), honest;
  Connect(node[1], honest[0]);
  auto [mine, theirs] = SocketPair();
  node[0].Adopt(std::move(mine));
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
  node[0].Adopt(std::move(mine));
  std::string got = "....";
  Message posted(node[0], got);
  posted.Receive(1);
  const uint64_t large[] = {9, kEarlyBytes + 1};
  ASSERT_GT(write(theirs.get(), large, sizeof(large)), 0);
  EXPECT_EQ(posted.Await(), "it sends more than was expected");
}

// A sender that is far ahead waits; what it has sent comes in order.
TEST(TcpConnectionEarlyTest, OnlySoMuchIsReadAhead) {
  constexpr size_t kMessages = 100;
  const std::string text(1 << 20, 'x');
  Node a;
  Node b(1, 4 << 20);
  Connect(a[0], b[0]);
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

}  // namespace
}  // namespace maypole::worker
