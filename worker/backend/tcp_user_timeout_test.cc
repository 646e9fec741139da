#include "worker/backend/tcp_user_timeout.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/system/fd.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

// A connection over loopback.
struct Connection {
  Fd listener, near, far;

  Connection() {
    listener = Fd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener.get(), at, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), at, &size), 0);
    near = Fd(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(near.get(), at, size), 0);
    far = Fd(accept(listener.get(), nullptr, nullptr));
  }
};

unsigned TimeoutOf(const Fd& fd) {
  unsigned value = 0;
  socklen_t size = sizeof(value);
  EXPECT_EQ(getsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size),
            0);
  return value;
}

TEST(Unanswered, BoundsBothEndsAndNotTheListener) {
  Connection c;
  EXPECT_EQ(SetTcpUserTimeout(milliseconds(1500)), 2);
  EXPECT_EQ(TimeoutOf(c.near), 1500u);
  EXPECT_EQ(TimeoutOf(c.far), 1500u);
  EXPECT_EQ(TimeoutOf(c.listener), 0u);
}

TEST(Unanswered, LeavesABoundThatIsThere) {
  Connection c;
  const unsigned others = 700;
  ASSERT_EQ(setsockopt(c.near.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &others,
                       sizeof(others)),
            0);
  EXPECT_EQ(SetTcpUserTimeout(milliseconds(1500)), 1);
  EXPECT_EQ(TimeoutOf(c.near), 700u);
  EXPECT_EQ(SetTcpUserTimeout(milliseconds(1500)), 0);
}

TEST(Unanswered, ZeroIsNever) {
  Connection c;
  EXPECT_EQ(SetTcpUserTimeout(milliseconds(0)), 0);
  EXPECT_EQ(TimeoutOf(c.near), 0u);
}

}  // namespace
}  // namespace maypole::worker
