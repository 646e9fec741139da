#include "common/wire/session_messages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/wire/unix_socket.h"

namespace maypole {
namespace {

TEST(SessionTest, MessagesSurviveTheTrip) {
  auto hello = session::Make<session::Hello>();
  hello.rank = 3;
  session::SetText(hello.job, "train");
  ASSERT_TRUE(session::CheckHeader(&hello, sizeof(hello), "client").ok());
  session::Hello copy;
  ASSERT_TRUE(session::Parse(&hello, sizeof(hello), &copy).ok());
  EXPECT_EQ(copy.rank, 3);
  EXPECT_STREQ(copy.job, "train");
}

TEST(SessionTest, AnotherVersionIsRefusedWithBothNamed) {
  auto m = session::Make<session::Goodbye>();
  session::SetVersion(&m, kProtocolVersion + 1);
  const Status s = session::CheckHeader(&m, sizeof(m), "client");
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "this executor speaks protocol version 1, but the client speaks "
            "protocol version 2; upgrade this executor");
}

// A Hello of any version, which may be shorter or longer than this build's.
std::string HelloError(VersionRange client, size_t bytes) {
  std::string hello(std::max(bytes, sizeof(session::Hello)), '\0');
  auto m = session::Make<session::Hello>();
  m.header.version = client.oldest;
  m.newest_version = client.newest;
  m.rank = 3;
  m.header.size = static_cast<uint32_t>(bytes);
  std::memcpy(hello.data(), &m, sizeof(m));
  return session::CheckHelloHeader(hello.data(), bytes,
                                   {"the agent of node n1", kProtocolVersions},
                                   4096)
      .message();
}

TEST(SessionTest, AHelloSaysARangeAndIsRefusedWithBothNamed) {
  constexpr size_t kBytes = sizeof(session::Hello);
  EXPECT_EQ(HelloError({1, 1}, kBytes), "");
  EXPECT_EQ(HelloError({1, 2}, kBytes), "");
  EXPECT_EQ(HelloError({0, 7}, kBytes), "");
  EXPECT_EQ(HelloError({0, 0}, kBytes),
            "libmaypole of rank 3 speaks protocol version 0, but the agent of "
            "node n1 speaks protocol version 1; upgrade libmaypole of rank 3");
  const std::string newer =
      "the agent of node n1 speaks protocol version 1, but libmaypole of rank "
      "3 speaks protocol versions 2 to 3; upgrade the agent of node n1";
  EXPECT_EQ(HelloError({2, 3}, kBytes), newer);
  EXPECT_EQ(HelloError({2, 3}, kBytes + 8), newer);
  EXPECT_EQ(HelloError({2, 3}, 104), newer);
}

TEST(SessionTest, HostileBytesAreRefused) {
  const char junk[] = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_FALSE(session::CheckHeader(junk, sizeof(junk), "client").ok());
  EXPECT_FALSE(session::CheckHeader(junk, 3, "client").ok());
  auto m = session::Make<session::Hello>();
  m.header.size = 12;
  EXPECT_FALSE(session::CheckHeader(&m, sizeof(m), "client").ok());
  m = session::Make<session::Hello>();
  std::fill(std::begin(m.job), std::end(m.job), 'x');  // no end
  session::Hello copy;
  EXPECT_FALSE(session::Parse(&m, sizeof(m), &copy).ok());
  session::Goodbye bye;
  EXPECT_FALSE(session::Parse(&m, sizeof(m), &bye).ok());
}

TEST(SessionTest, LongTextIsCutAndEnded) {
  session::Refused r = session::Make<session::Refused>();
  session::SetText(r.text, std::string(5000, 'e'));
  EXPECT_EQ(std::string(r.text).size(), kMaxErrorBytes);
}

class SocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string dir = std::string(getenv("TEST_TMPDIR")) + "/sXXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    // Bazel's directories may be too long for a socket's path.
    ASSERT_EQ(chdir(dir.c_str()), 0);
  }
};

TEST_F(SocketTest, DescriptorsAndCredentialsArrive) {
  Fd listener, client, server;
  ASSERT_TRUE(ListenUnix("a.sock", 0600, &listener).ok());
  ASSERT_TRUE(ConnectUnix("a.sock", &client).ok());
  ASSERT_TRUE(AcceptUnix(listener.get(), &server).ok());
  PeerCredentials peer;
  ASSERT_TRUE(PeerOf(server.get(), &peer).ok());
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, getuid());
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  const int fds[] = {p[1]};
  ASSERT_TRUE(SendMessage(server.get(), "hi", 2, fds).ok());
  Received r;
  ASSERT_TRUE(ReceiveMessage(client.get(), 100, 1000, &r).ok());
  EXPECT_EQ(std::string(r.data.begin(), r.data.end()), "hi");
  ASSERT_EQ(r.fds.size(), 1u);
  ASSERT_EQ(write(r.fds[0].get(), "x", 1), 1);
  char c = 0;
  ASSERT_EQ(read(p[0], &c, 1), 1);
  EXPECT_EQ(c, 'x');
  close(p[0]);
  close(p[1]);
  client.Reset();
  ASSERT_TRUE(ReceiveMessage(server.get(), 100, 1000, &r).ok());
  EXPECT_TRUE(r.data.empty()) << "closed";
}

TEST_F(SocketTest, ALiveListenerIsKeptAStaleOneReplaced) {
  Fd first, second;
  ASSERT_TRUE(ListenUnix("b.sock", 0600, &first).ok());
  EXPECT_EQ(ListenUnix("b.sock", 0600, &second).code(), Code::kAlreadyExists);
  first.Reset();
  EXPECT_TRUE(ListenUnix("b.sock", 0600, &second).ok());
  EXPECT_EQ(ListenUnix(std::string(200, 'p'), 0600, &first).code(),
            Code::kInvalidArgument);
}

TEST_F(SocketTest, TheListenerThatIsThereIsNamed) {
  Fd first, second;
  ASSERT_TRUE(ListenUnix("n.sock", 0600, &first).ok());
  EXPECT_EQ(ListenUnix("n.sock", 0600, &second).message(),
            "another agent already listens at n.sock (pid " +
                std::to_string(getpid()) + ", uid " + std::to_string(getuid()) +
                "); use it, or end it, or give this one another --socket");
  EXPECT_NE(access("n.sock.lock", F_OK), 0) << "no lock file is left";
}

// A listener that does not accept any more still counts as listening.
TEST_F(SocketTest, AListenerWithAFullQueueIsKept) {
  Fd first, second;
  ASSERT_TRUE(ListenUnix("q.sock", 0600, &first).ok());
  ASSERT_EQ(listen(first.get(), 0), 0);
  Fd waits;
  ASSERT_TRUE(ConnectUnix("q.sock", &waits).ok());
  EXPECT_EQ(ListenUnix("q.sock", 0600, &second).code(), Code::kAlreadyExists);
}

// Each process saw no listener and removed the other's socket: one of them
// could never be reached.
TEST_F(SocketTest, OfManyThatStartAtOnceOneListens) {
  constexpr int kMany = 4;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    // In half of the rounds, the socket of a killed process is there.
    if (round % 2 == 0) {
      unlink("r.sock");
    }
    std::barrier start(kMany);
    Fd listeners[kMany];
    std::vector<std::thread> threads;
    for (int i = 0; i < kMany; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        (void)ListenUnix("r.sock", 0600, &listeners[i]);
      });
    }
    for (std::thread& t : threads) t.join();
    const auto listens = [](const Fd& fd) { return fd.valid(); };
    ASSERT_EQ(std::count_if(listeners, listeners + kMany, listens), 1)
        << "in round " << round;
    Fd client, server;
    ASSERT_TRUE(ConnectUnix("r.sock", &client).ok());
    ASSERT_TRUE(
        AcceptUnix(std::find_if(listeners, listeners + kMany, listens)->get(),
                   &server)
            .ok());
  }
}

TEST_F(SocketTest, TheSocketFileHasItsModeWhateverTheUmask) {
  for (const mode_t mask : {0u, 022u, 077u}) {
    for (const mode_t mode : {0600u, 0666u}) {
      const mode_t before = umask(mask);
      Fd listener;
      const Status s = ListenUnix("m.sock", mode, &listener);
      EXPECT_EQ(umask(before), mask) << "is as it was";
      ASSERT_TRUE(s.ok()) << s.message();
      struct stat st;
      ASSERT_EQ(lstat("m.sock", &st), 0);
      EXPECT_EQ(st.st_mode & 07777, mode) << "umask " << mask;
    }
  }
}

TEST_F(SocketTest, FullIsOnlyWhatRoomHelps) {
  int s[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, s), 0);
  Fd here(s[0]), peer(s[1]);
  const std::string endless(16 << 20, 'x');  // EMSGSIZE
  EXPECT_EQ(SendMessage(here.get(), endless.data(), endless.size()).code(),
            Code::kUnknown);
  Status last;
  for (int i = 0; i < 100000 && last.ok(); ++i) {
    last = SendMessage(here.get(), "x", 1);
  }
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  peer.Reset();
  // The first call may report data that the peer has not read; the second
  // cannot.
  EXPECT_EQ(SendMessage(here.get(), "x", 1).code(), Code::kUnavailable);
  EXPECT_EQ(SendMessage(here.get(), "x", 1).code(), Code::kUnavailable);
}

TEST_F(SocketTest, WhoConnectsCannotSendDescriptors) {
  Fd listener, client, server;
  ASSERT_TRUE(ListenUnix("d.sock", 0600, &listener).ok());
  int on = 0;
  socklen_t size = sizeof(on);
  constexpr int kPassRights = 83;
  if (getsockopt(listener.get(), SOL_SOCKET, kPassRights, &on, &size) != 0) {
    GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS";
  }
  ASSERT_TRUE(ConnectUnix("d.sock", &client).ok());
  const int fds[] = {STDERR_FILENO};
  EXPECT_EQ(SendMessage(client.get(), "hi", 2, fds).code(),
            Code::kPermissionDenied);
  ASSERT_TRUE(AcceptUnix(listener.get(), &server).ok());
  EXPECT_EQ(SendMessage(client.get(), "hi", 2, fds).code(),
            Code::kPermissionDenied);
  EXPECT_TRUE(SendMessage(client.get(), "hi", 2).ok());
}

// A connection to ourselves with data that is never read, so that close() waits
// for it.
Fd Lingering(Fd* listener, Fd* peer) {
  *listener = Fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener->get(), any, size), 0);
  EXPECT_EQ(listen(listener->get(), 1), 0);
  EXPECT_EQ(getsockname(listener->get(), any, &size), 0);
  Fd fd(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(fd.get(), any, size), 0);
  *peer = Fd(accept(listener->get(), nullptr, nullptr));
  const std::string data(65536, 'x');
  while (send(fd.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
  }
  const linger patient{1, 10};
  EXPECT_EQ(
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &patient, sizeof(patient)),
      0);
  return fd;
}

TEST_F(SocketTest, AStrangersLingeringSocketIsClosedAtOnce) {
  Fd listener, peer;
  std::vector<Fd> fds;
  fds.push_back(Lingering(&listener, &peer));
  fds.emplace_back(dup(STDERR_FILENO));
  const auto start = std::chrono::steady_clock::now();
  CloseUnasked(std::move(fds));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(SocketTest, LastWordsOfAPeerThatHasNotReadEverythingArrive) {
  int s[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
  Fd here(s[0]), peer(s[1]);
  ASSERT_TRUE(SendMessage(here.get(), "unread", 6).ok());
  ASSERT_TRUE(SendMessage(peer.get(), "goodbye", 7).ok());
  peer.Reset();
  Received r;
  ASSERT_TRUE(ReceiveMessage(here.get(), 100, 1000, &r).ok());
  EXPECT_EQ(std::string(r.data.begin(), r.data.end()), "goodbye");
  ASSERT_TRUE(ReceiveMessage(here.get(), 100, 1000, &r).ok());
  EXPECT_TRUE(r.data.empty());
}

TEST_F(SocketTest, TooLongMessagesAreAnError) {
  int s[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
  Fd a(s[0]), b(s[1]);
  const std::string big(5000, 'x');
  ASSERT_TRUE(SendMessage(a.get(), big.data(), big.size()).ok());
  Received r;
  EXPECT_EQ(ReceiveMessage(b.get(), 2048, 1000, &r).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ReceiveMessage(b.get(), 2048, 0, &r).code(),
            Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace maypole
