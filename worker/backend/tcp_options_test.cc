#include "worker/backend/tcp_options.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/system/fd.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

class TcpOptionsTest : public testing::Test {
 protected:
  int Get(int level, int option) const {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd_.get(), level, option, &value, &size), 0);
    return value;
  }
  int UserTimeout() const { return Get(IPPROTO_TCP, TCP_USER_TIMEOUT); }

  std::string Congestion() const {
    char name[16] = {};
    socklen_t size = sizeof(name);
    EXPECT_EQ(getsockopt(fd_.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size),
              0);
    return name;
  }

  const Fd fd_{socket(AF_INET, SOCK_STREAM, 0)};
};

TEST_F(TcpOptionsTest, BoundsSentDataAndSilence) {
  ASSERT_TRUE(SetTcpTimeouts(fd_.get(), milliseconds(18000)).ok());
  EXPECT_EQ(UserTimeout(), 18000);
  EXPECT_EQ(Get(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPIDLE), 6);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPINTVL), 3);
}

TEST_F(TcpOptionsTest, ProbesComeInWholeSeconds) {
  ASSERT_TRUE(SetTcpTimeouts(fd_.get(), milliseconds(500)).ok());
  EXPECT_EQ(UserTimeout(), 500);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPIDLE), 2);
  EXPECT_EQ(Get(IPPROTO_TCP, TCP_KEEPINTVL), 1);
}

TEST_F(TcpOptionsTest, ZeroIsNever) {
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

TEST_F(TcpOptionsTest, ACongestionControlThatIsAllowedIsUsed) {
  ASSERT_TRUE(SetTcpCongestion(fd_.get(), "reno").ok());
  EXPECT_EQ(Congestion(), "reno");
  // Only bbr is replaced.
  ASSERT_TRUE(SetTcpCongestion(fd_.get(), "auto").ok());
  EXPECT_EQ(Congestion(), "reno");
  ASSERT_TRUE(SetTcpCongestion(fd_.get(), "system").ok());
  EXPECT_EQ(Congestion(), "reno");
}

TEST_F(TcpOptionsTest, BbrIsReplacedUnlessItIsAskedFor) {
  if (!SetTcpCongestion(fd_.get(), "bbr").ok()) {
    GTEST_SKIP() << "this kernel has no bbr";
  }
  ASSERT_TRUE(SetTcpCongestion(fd_.get(), "system").ok());
  EXPECT_EQ(Congestion(), "bbr");
  // Not everywhere may everybody use cubic.
  const Fd other(socket(AF_INET, SOCK_STREAM, 0));
  const bool allowed = SetTcpCongestion(other.get(), "cubic").ok();
  ASSERT_TRUE(SetTcpCongestion(fd_.get(), "auto").ok());
  EXPECT_EQ(Congestion(), allowed ? "cubic" : "bbr");
}

TEST_F(TcpOptionsTest, AnUnknownCongestionControlIsNamed) {
  const absl::Status s = SetTcpCongestion(fd_.get(), "hope");
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("--network_congestion=hope"), std::string::npos);
  EXPECT_NE(s.message().find("reno"), std::string::npos) << s;
}

}  // namespace
}  // namespace maypole::worker
