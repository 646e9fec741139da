#include "worker/executor/client_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/wire/unix_socket.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

struct Pair {
  Pair() {
    int s[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, s), 0);
    here = ClientConnection(Fd(s[0]), Fd());
    there = Fd(s[1]);
  }
  ClientConnection here;
  Fd there;
};

TEST(ClientConnectionTest, WhatTheSocketDoesNotTakeComesLaterInOrder) {
  Pair p;
  const std::string padding(1000, '.');
  constexpr int kMessages = 3000;
  for (int i = 0; i < kMessages; ++i) {
    const std::string m = std::to_string(i) + padding;
    ASSERT_TRUE(p.here.Send(m.data(), m.size()).ok());
  }
  ASSERT_TRUE(p.here.wants_to_write());
  for (int i = 0; i < kMessages; ++i) {
    Received r;
    if (ReceiveMessage(p.there.get(), 2048, 0, &r).code() ==
        Code::kDeadlineExceeded) {
      ASSERT_TRUE(p.here.Flush().ok());
      ASSERT_TRUE(ReceiveMessage(p.there.get(), 2048, 0, &r).ok());
    }
    ASSERT_EQ(std::string(r.data.begin(), r.data.end()),
              std::to_string(i) + padding);
  }
  EXPECT_FALSE(p.here.wants_to_write());
}

TEST(ClientConnectionTest, AClientThatNeverReadsReachesTheLimit) {
  Pair p;
  const std::string m(8, 'x');
  size_t sent = 0;
  Status s;
  while ((s = p.here.Send(m.data(), m.size())).ok()) ++sent;
  EXPECT_EQ(s.message(), "it does not read the executor's messages");
  EXPECT_GE(sent, kMaxUnsentReplies);
  EXPECT_LT(sent, 2 * kMaxUnsentReplies);
}

TEST(ClientConnectionTest, AClientThatHasGoneIsNoError) {
  Pair p;
  p.there.Reset();
  EXPECT_TRUE(p.here.Send("x", 1).ok());
  EXPECT_FALSE(p.here.wants_to_write());
}

void Fill(Pair& p) {
  for (int i = 0; i < 10000 && !p.here.wants_to_write(); ++i) {
    ASSERT_TRUE(p.here.Send("x", 1).ok());
  }
  ASSERT_TRUE(p.here.wants_to_write());
}

TEST(ClientConnectionTest, AClientThatGoesWithMuchUnsentIsNoError) {
  Pair p;
  Fill(p);
  p.there.Reset();
  EXPECT_TRUE(p.here.Flush().ok());
  EXPECT_FALSE(p.here.wants_to_write());
}

TEST(ClientConnectionTest, WhatIsKeptKeepsItsDescriptors) {
  Pair p;
  Fill(p);
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const Fd reads(pipe_fds[0]);
  Fd writes(pipe_fds[1]);
  const int fds[] = {writes.get()};
  ASSERT_TRUE(p.here.Send("welcome", 7, fds).ok());
  writes.Reset();
  Received r;
  do {
    ASSERT_TRUE(p.here.Flush().ok());
    ASSERT_TRUE(ReceiveMessage(p.there.get(), 2048, 0, &r).ok());
  } while (r.data.size() == 1);
  EXPECT_EQ(std::string(r.data.begin(), r.data.end()), "welcome");
  ASSERT_EQ(r.fds.size(), 1u);
  EXPECT_EQ(write(r.fds[0].get(), "y", 1), 1);
  char c = 0;
  EXPECT_EQ(read(reads.get(), &c, 1), 1);
  EXPECT_EQ(c, 'y');
}

// Longer than the buffer, as an example of errors other than "full" (ENOBUFS,
// ETOOMANYREFS): a retry would never succeed.
TEST(ClientConnectionTest, WhatCannotBeSentIsAnError) {
  Pair p;
  const std::string endless(16 << 20, 'x');
  const Status s = p.here.Send(endless.data(), endless.size());
  EXPECT_EQ(s.message().find("its connection failed: cannot send: "), 0u)
      << s.message();
  EXPECT_FALSE(p.here.wants_to_write());
}

TEST(ClientConnectionTest, WhatCannotBeSentLaterIsAnErrorToo) {
  Pair p;
  Fill(p);
  const std::string m(60000, 'x');
  ASSERT_TRUE(p.here.Send(m.data(), m.size()).ok());
  const int least = 1;  // the kernel makes a few thousand of it
  ASSERT_EQ(
      setsockopt(p.here.socket(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)),
      0);
  Received r;
  while (ReceiveMessage(p.there.get(), 2048, 0, &r).ok()) {
  }
  Status s = p.here.Flush();  // the rest of the filling
  while (s.ok() && ReceiveMessage(p.there.get(), 2048, 0, &r).ok()) {
    s = p.here.Flush();
  }
  EXPECT_EQ(s.message().find("its connection failed: cannot send: "), 0u)
      << s.message();
}

TEST(ClientConnectionTest, ADescriptorThatCannotBeKeptIsAnError) {
  Pair p;
  Fill(p);
  const int fds[] = {-1};
  EXPECT_FALSE(p.here.Send("welcome", 7, fds).ok());
}

}  // namespace
}  // namespace maypole::worker
