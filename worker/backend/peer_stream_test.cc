#include "worker/backend/peer_stream.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/testing/peer_sockets.h"

namespace maypole::worker {
namespace {

// Two ends over TCP, whose kernel acknowledges what it has taken.
std::pair<Fd, Fd> TcpPair() {
  Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener.get(), any, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
  Fd one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Small buffers: much is written that the other end has not got.
  const int bytes = 64 * 1024;
  setsockopt(one.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  EXPECT_EQ(connect(one.get(), any, size), 0);
  return {std::move(one), Fd(accept(listener.get(), nullptr, nullptr))};
}

PeerSockets Sockets(bool encrypted) {
  auto [one, other] = TcpPair();
  if (!encrypted) {
    return {PeerSocket(std::move(one)), PeerSocket(std::move(other))};
  }
  PeerSockets ends = UnshakenSockets(std::move(one), std::move(other));
  // Over TCP, a step may come before the bytes of the other end.
  absl::Status s;
  for (int i = 0; i < 1000; ++i) {
    s = Shake(ends.first, ends.second);
    if (!absl::IsDeadlineExceeded(s)) break;
  }
  EXPECT_TRUE(s.ok()) << s;
  return ends;
}

// One end of a stream, what it has written and what it has read.
struct End {
  std::shared_ptr<SocketSupply> supply;
  std::vector<int> lost;  // errors
  int wakes = 0;
  PeerStream stream;
  std::string written;
  std::string read;

  void Open(PeerSocket socket) {
    supply = std::make_shared<SocketSupply>(
        [this](int error) { lost.push_back(error); });
    stream = PeerStream(std::move(socket), supply);
    stream.OnSocket([this] { ++wakes; });
  }
  // In two parts. Returns the errno, or 0.
  int Write(std::string text) {
    const size_t half = text.size() / 2;
    const iovec parts[2] = {{text.data(), half},
                            {text.data() + half, text.size() - half}};
    const ssize_t n = stream.Write(parts, 2);
    if (n < 0) return errno;
    written.append(text, 0, static_cast<size_t>(n));
    return 0;
  }
  int Flush() { return stream.Write(nullptr, 0) < 0 ? errno : 0; }
  int Read(size_t bytes) {
    std::string room(bytes, '\0');
    const size_t half = bytes / 2;
    const iovec parts[2] = {{room.data(), half},
                            {room.data() + half, bytes - half}};
    const ssize_t n = stream.Read(parts, 2);
    if (n < 0) return errno;
    read.append(room, 0, static_cast<size_t>(n));
    return 0;
  }
};

class PeerStreamTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    PeerSockets ends = Sockets(GetParam());
    a_.Open(std::move(ends.first));
    b_.Open(std::move(ends.second));
  }
  // a_ has noticed that the network is lost, and both have another socket.
  void GiveSockets() {
    ASSERT_TRUE(a_.stream.Suspend(ETIMEDOUT));
    GiveOtherSockets();
  }
  void GiveOtherSockets() {
    PeerSockets ends = Sockets(GetParam());
    a_.supply->Give(std::move(ends.first));
    b_.supply->Give(std::move(ends.second));
  }
  void Finish() {
    const auto rest = [&] {
      return a_.stream.has_unsent() || b_.stream.has_unsent() ||
             a_.read.size() < b_.written.size() ||
             b_.read.size() < a_.written.size();
    };
    for (int i = 0; i < 1000000 && rest(); ++i) {
      for (End* end : {&a_, &b_}) {
        if (end->stream.has_unsent()) {
          const int error = end->Flush();
          ASSERT_TRUE(error == 0 || error == EAGAIN) << std::strerror(error);
        }
        const int error = end->Read(100000);
        ASSERT_TRUE(error == 0 || error == EAGAIN) << std::strerror(error);
      }
    }
    EXPECT_TRUE(a_.read == b_.written);
    EXPECT_TRUE(b_.read == a_.written);
  }

  // Some random writes and reads of an end.
  void Play(std::mt19937& random, const std::vector<End*>& ends, size_t steps) {
    const auto up_to = [&](size_t n) { return random() % n; };
    for (; steps > 0; --steps) {
      End& end = *ends[up_to(ends.size())];
      std::string text(1 + up_to(200000), '\0');
      for (size_t i = 0; i + sizeof(uint32_t) <= text.size();
           i += sizeof(uint32_t)) {
        const auto word = static_cast<uint32_t>(random());
        std::memcpy(&text[i], &word, sizeof(word));
      }
      const int error = random() % 3 != 0 ? end.Write(std::move(text))
                                          : end.Read(1 + up_to(100000));
      ASSERT_TRUE(error == 0 || error == EAGAIN) << std::strerror(error);
    }
  }

  End a_;
  End b_;
};

INSTANTIATE_TEST_SUITE_P(, PeerStreamTest, testing::Bool(), [](const auto& p) {
  return p.param ? "Encrypted" : "Clear";
});

TEST_P(PeerStreamTest, LosesAndRepeatsNothing) {
  std::mt19937 random(7);
  for (int loss = 0; loss < 40; ++loss) {
    Play(random, {&a_, &b_}, random() % 120);
    GiveSockets();
    End* const ends[2] = {&a_, &b_};
    const size_t first = random() % 2;
    for (const size_t i : {first, 1 - first}) {
      EXPECT_TRUE(ends[i]->stream.CanResume());
      ends[i]->stream.Resume();
      EXPECT_FALSE(ends[i]->stream.CanResume());
    }
  }
  Finish();
  EXPECT_GT(a_.written.size(), 500000u);
  EXPECT_EQ(a_.lost, std::vector<int>(40, ETIMEDOUT));
  EXPECT_TRUE(b_.lost.empty());
  EXPECT_EQ(a_.wakes, 40);
}

// Both sockets work, and b_ goes on with the old one until it has another.
TEST_P(PeerStreamTest, MovesWithoutALoss) {
  std::mt19937 random(11);
  std::vector<int> lost;
  for (int move = 0; move < 30; ++move) {
    Play(random, {&a_, &b_}, random() % 120);
    a_.supply->RequestMove();
    if (!a_.stream.Move()) {  // it still waits for the number of the last time
      GiveSockets();
      lost.push_back(ETIMEDOUT);
      a_.stream.Resume();
      b_.stream.Resume();
      continue;
    }
    lost.push_back(0);
    EXPECT_EQ(a_.Write("x"), EAGAIN);
    Play(random, {&b_, &a_}, random() % 40);
    GiveOtherSockets();
    const bool fails = random() % 4 == 0;
    End* const ends[2] = {&a_, &b_};
    const size_t first = random() % 2;
    ends[first]->stream.Resume();
    Play(random, {&b_, &b_, &a_}, random() % 40);
    ends[1 - first]->stream.Resume();
    if (fails && a_.stream.Suspend(ENETDOWN)) {  // the new one, too
      lost.push_back(ENETDOWN);
      GiveOtherSockets();
      b_.stream.Resume();
      a_.stream.Resume();
    }
  }
  Finish();
  EXPECT_GT(a_.written.size(), 500000u);
  EXPECT_GT(b_.written.size(), 500000u);
  EXPECT_EQ(a_.lost, lost);
  EXPECT_GT(std::count(lost.begin(), lost.end(), 0), 8);
  EXPECT_TRUE(b_.lost.empty());
}

TEST_P(PeerStreamTest, MovesOnlyWhenAsked) {
  EXPECT_FALSE(a_.stream.Move());
  a_.supply->RequestMove();
  EXPECT_EQ(a_.wakes, 1);
  ASSERT_TRUE(a_.stream.Suspend(ETIMEDOUT));
  EXPECT_FALSE(a_.stream.Move());  // it is lost already
  GiveOtherSockets();
  a_.stream.Resume();
  EXPECT_FALSE(a_.stream.Move());
  b_.stream.Resume();
  Finish();
  EXPECT_EQ(a_.lost, std::vector<int>{ETIMEDOUT});
}

TEST_P(PeerStreamTest, KeepsNotMuchMoreThanTheKernel) {
  const std::string text(100000, 'x');
  for (int i = 0; i < 400; ++i) {
    while (a_.Write(text) == EAGAIN) ASSERT_EQ(b_.Read(1 << 20), 0);
    EXPECT_LT(a_.stream.kept_bytes(), 4u << 20);
  }
  EXPECT_GT(a_.written.size(), 20u << 20);
  Finish();
}

TEST_P(PeerStreamTest, NothingIsWrittenBeforeThePeerHasSaidWhatItHas) {
  EXPECT_EQ(a_.Write("abc"), 0);
  GiveSockets();
  a_.stream.Resume();
  EXPECT_FALSE(a_.stream.can_write());
  EXPECT_TRUE(a_.stream.has_unsent());
  EXPECT_EQ(a_.Write("def"), EAGAIN);
  EXPECT_EQ(a_.Read(10), EAGAIN);
  EXPECT_FALSE(a_.stream.can_write());
  b_.stream.Resume();  // it takes "abc" from the old socket
  while (!a_.stream.can_write()) EXPECT_EQ(a_.Read(10), EAGAIN);
  EXPECT_FALSE(a_.stream.has_unsent());
  EXPECT_EQ(a_.Write("def"), 0);
  Finish();
}

TEST_P(PeerStreamTest, OnlyALostNetworkSuspends) {
  for (const int error : {0, EPIPE, EBADMSG}) {
    EXPECT_FALSE(a_.stream.Suspend(error)) << error;
  }
  EXPECT_TRUE(a_.lost.empty());
  for (const int error :
       {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN, ECONNRESET}) {
    PeerSockets ends = Sockets(GetParam());
    a_.Open(std::move(ends.first));
    EXPECT_TRUE(a_.stream.Suspend(error)) << error;
    EXPECT_TRUE(a_.stream.Suspend(EPIPE));  // what the next call would say
    EXPECT_EQ(a_.lost.back(), error);
    EXPECT_EQ(a_.Read(10), EAGAIN);
    EXPECT_EQ(a_.Write("x"), EAGAIN);
  }
  EXPECT_EQ(a_.lost.size(), 5u);
  PeerStream plain(Sockets(GetParam()).first);
  EXPECT_FALSE(plain.lasting());
  EXPECT_FALSE(plain.Suspend(ETIMEDOUT));
}

TEST_P(PeerStreamTest, ASocketThatEndsBeforeItIsUsedIsNotTheLastOne) {
  EXPECT_EQ(a_.Write("abc"), 0);
  ASSERT_TRUE(a_.stream.Suspend(ETIMEDOUT));
  a_.supply->Give(Sockets(GetParam()).first);  // the other end is gone
  a_.stream.Resume();
  while (a_.Read(10) == EAGAIN) {
  }
  EXPECT_TRUE(a_.stream.Suspend(0));
  EXPECT_EQ(a_.lost.size(), 2u);
  GiveSockets();
  a_.stream.Resume();
  b_.stream.Resume();
  Finish();
}

TEST_P(PeerStreamTest, ANumberThatCannotBeIsAnError) {
  EXPECT_EQ(a_.Write("abc"), 0);
  ASSERT_TRUE(a_.stream.Suspend(ETIMEDOUT));
  PeerSockets ends = Sockets(GetParam());
  a_.supply->Give(std::move(ends.first));
  uint64_t number = 4;  // of 3
  const iovec part{&number, sizeof(number)};
  EXPECT_EQ(ends.second.Write(&part, 1), 8);
  a_.stream.Resume();
  int error = EAGAIN;
  while (error == EAGAIN) error = a_.Read(10);
  EXPECT_EQ(error, EPROTO);
}

TEST(SocketSupplyTest, NobodyIsCalledAfterTheEnds) {
  int lost = 0;
  int wakes = 0;
  auto supply = std::make_shared<SocketSupply>([&](int) { ++lost; });
  {
    PeerStream stream(PeerSocket(SocketPair().first), supply);
    stream.OnSocket([&] { ++wakes; });
    supply->Give(PeerSocket(SocketPair().first));
    EXPECT_EQ(wakes, 1);
    supply->Close();
    EXPECT_TRUE(stream.Suspend(ETIMEDOUT));
    EXPECT_EQ(lost, 0);
  }
  supply->Give(PeerSocket(SocketPair().first));
  EXPECT_EQ(wakes, 1);
}

}  // namespace
}  // namespace maypole::worker
