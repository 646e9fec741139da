#include "worker/session/connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "common/unix_socket.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

struct Pair {
  Pair() {
    int s[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, s), 0);
    here = Connection(Fd(s[0]), Fd());
    there = Fd(s[1]);
  }
  Connection here;
  Fd there;
};

TEST(ConnectionTest, WhatTheSocketDoesNotTakeComesLaterInOrder) {
  Pair p;
  const std::string padding(1000, '.');
  constexpr int kMessages = 3000;
  for (int i = 0; i < kMessages; ++i) {
    const std::string m = std::to_string(i) + padding;
    ASSERT_TRUE(p.here.Send(m.data(), m.size()));
  }
  ASSERT_TRUE(p.here.wants_to_write());
  for (int i = 0; i < kMessages; ++i) {
    Received r;
    if (ReceiveMessage(p.there.get(), 2048, 0, &r).code() ==
        Code::kDeadlineExceeded) {
      p.here.Flush();
      ASSERT_TRUE(ReceiveMessage(p.there.get(), 2048, 0, &r).ok());
    }
    ASSERT_EQ(std::string(r.data.begin(), r.data.end()),
              std::to_string(i) + padding);
  }
  EXPECT_FALSE(p.here.wants_to_write());
}

TEST(ConnectionTest, AClientThatNeverReadsReachesTheLimit) {
  Pair p;
  const std::string m(8, 'x');
  size_t sent = 0;
  while (p.here.Send(m.data(), m.size())) ++sent;
  EXPECT_GE(sent, kMaxUnsentReplies);
  EXPECT_LT(sent, 2 * kMaxUnsentReplies);
}

TEST(ConnectionTest, AClientThatHasGoneIsNoError) {
  Pair p;
  p.there.Reset();
  EXPECT_TRUE(p.here.Send("x", 1));
  EXPECT_FALSE(p.here.wants_to_write());
}

}  // namespace
}  // namespace maypole::worker
