#include "worker/backend/tcp_timeouts.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/system/fd.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

class TcpTimeoutsTest : public testing::Test {
 protected:
  int Get(int level, int option) const {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd_.get(), level, option, &value, &size), 0);
    return value;
  }
  int UserTimeout() const { return Get(IPPROTO_TCP, TCP_USER_TIMEOUT); }

  const Fd fd_{socket(AF_INET, SOCK_STREAM, 0)};
};

TEST_F(TcpTimeoutsTest, BoundsSentDataAndSilence) {
  ASSERT_TRUE(SetTcpTimeouts(fd_.get(), milliseconds(18000)).ok());
  EXPECT_EQ(UserTimeout(), 18000);
  EXPECT_EQ(Get(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPIDLE), 6);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPINTVL), 3);
}

TEST_F(TcpTimeoutsTest, ProbesComeInWholeSeconds) {
  ASSERT_TRUE(SetTcpTimeouts(fd_.get(), milliseconds(500)).ok());
  EXPECT_EQ(UserTimeout(), 500);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPIDLE), 2);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPINTVL), 1);
}

TEST_F(TcpTimeoutsTest, ZeroIsNever) {
  ASSERT_TRUE(SetTcpTimeouts(fd_.get(), milliseconds(0)).ok());
  EXPECT_EQ(UserTimeout(), 0);
  EXPECT_EQ(Get(SOL_SOCKET, SO_KEEPALIVE), 0);
}

TEST(TcpTimeoutsErrorTest, ADescriptorThatIsNoSocketIsAnError) {
  const absl::Status s = SetTcpTimeouts(-1, milliseconds(500));
  EXPECT_EQ(s.message(),
            "cannot set the timeouts of a connection between nodes: "
            "Bad file descriptor");
}

}  // namespace
}  // namespace maypole::worker
