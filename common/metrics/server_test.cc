// No client can block the metrics server for others.
#include "common/metrics/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/families.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
// On an idle machine a hundredth of this would be enough.
constexpr milliseconds kPatience(20'000);

class OneGauge : public prometheus::Collectable {
 public:
  explicit OneGauge(size_t samples) : samples_(samples) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    Families all;
    for (size_t i = 0; i < samples_; ++i) {
      all.Gauge("answer", "Of everything.", {{"i", std::to_string(i)}}, 42);
    }
    return all.Take();
  }

 private:
  const size_t samples_;
};

class MetricsServerTest : public ::testing::Test {
 protected:
  void Start(MetricsServer::Times times = {}, size_t samples = 1) {
    auto server = MetricsServer::Start(
        {"127.0.0.1", 0}, {std::make_shared<OneGauge>(samples)}, times);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // From another address of loopback, if `from` is one.
  Fd Connect(const char* from = "127.0.0.1") const {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)),
              0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(server_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              0);
    return fd;
  }
  static void Send(const Fd& fd, const std::string& text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Everything received until the server hangs up; "patience" if it does not.
  static std::string ReadAll(const Fd& fd) {
    std::string all;
    const auto end = Clock::now() + kPatience;
    while (Clock::now() < end) {
      pollfd ready{fd.get(), POLLIN, 0};
      if (poll(&ready, 1, 100) == 0) continue;
      char part[4096];
      const ssize_t n = recv(fd.get(), part, sizeof(part), 0);
      if (n <= 0) return all;
      all.append(part, static_cast<size_t>(n));
    }
    return "patience";
  }
  std::string Ask(const std::string& request) const {
    const Fd fd = Connect();
    Send(fd, request);
    return ReadAll(fd);
  }
  // Checks that a scrape is answered; returns how long it took.
  milliseconds Scrape() const {
    const auto begin = Clock::now();
    const std::string reply = Ask(kGet);
    EXPECT_NE(reply.find("HTTP/1.1 200 OK\r\n"), std::string::npos) << reply;
    EXPECT_NE(reply.find("\nanswer{i=\"0\"} 42\n"), std::string::npos) << reply;
    return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  }
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesThePageAndNothingElse) {
  Start();
  const std::string reply = Ask(kGet);
  EXPECT_NE(reply.find("Content-Type: text/plain; version=0.0.4"),
            std::string::npos);
  EXPECT_NE(reply.find("# TYPE answer gauge\nanswer{i=\"0\"} 42\n"),
            std::string::npos);
  const size_t body = reply.find("\r\n\r\n") + 4;
  EXPECT_NE(
      reply.find("Content-Length: " + std::to_string(reply.size() - body)),
      std::string::npos);
  EXPECT_NE(Ask("GET /metrics?name=x HTTP/1.0\r\n\r\n").find(" 200 "),
            std::string::npos);
  EXPECT_NE(Ask("GET / HTTP/1.1\r\n\r\n").find(" 404 "), std::string::npos);
  EXPECT_NE(Ask("POST /metrics HTTP/1.1\r\n\r\n").find(" 405 "),
            std::string::npos);
  EXPECT_NE(Ask("\r\n\r\n").find(" 405 "), std::string::npos);
}

TEST_F(MetricsServerTest, ARequestMayComeInPieces) {
  Start();
  const Fd fd = Connect();
  for (const char c : std::string(kGet)) Send(fd, std::string(1, c));
  EXPECT_NE(ReadAll(fd).find(" 200 "), std::string::npos);
}

TEST_F(MetricsServerTest, SilentConnectionsAndHalfRequestsKeepNobodyOut) {
  Start();
  std::vector<Fd> strangers;
  for (int i = 0; i < 32; ++i) {
    strangers.push_back(Connect());
    if (i % 2 == 0) Send(strangers.back(), "GET /metrics HTTP/1.1\r\nHost:");
  }
  EXPECT_LT(Scrape(), seconds(2));
}

TEST_F(MetricsServerTest, OneMoreThanTheMostHangsUpOnTheOldest) {
  Start();
  std::vector<Fd> strangers;
  for (size_t i = 0; i < 3 * MetricsServer::kMaxConnections; ++i) {
    strangers.push_back(Connect());
  }
  EXPECT_LT(Scrape(), seconds(2));
  EXPECT_EQ(ReadAll(strangers.front()), "");
  pollfd last{strangers.back().get(), POLLIN, 0};
  EXPECT_EQ(poll(&last, 1, 0), 0);
}

TEST_F(MetricsServerTest, ACrowdOfAnotherAddressDisplacesItself) {
  Start();
  const Fd slow = Connect();
  Send(slow, "GET /metrics HTTP/1.1\r\n");
  std::vector<Fd> strangers;
  for (size_t i = 0; i < 3 * MetricsServer::kMaxConnections; ++i) {
    strangers.push_back(Connect("127.0.0.2"));
  }
  EXPECT_EQ(ReadAll(strangers.front()), "");
  Send(slow, "\r\n");
  EXPECT_NE(ReadAll(slow).find(" 200 OK"), std::string::npos);
}

TEST_F(MetricsServerTest, WhoSaysNothingIsHungUpOnInTime) {
  Start({.request = milliseconds(100)});
  const auto begin = Clock::now();
  const Fd silent = Connect(), half = Connect();
  Send(half, "GET /met");
  EXPECT_EQ(ReadAll(silent), "");
  EXPECT_EQ(ReadAll(half), "");
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
}

TEST_F(MetricsServerTest, WhoDoesNotReadIsHungUpOnInTime) {
  Start({.reply = milliseconds(100)}, 200'000);  // more than sockets take
  const Fd fd = Connect();
  Send(fd, kGet);
  EXPECT_LT(Scrape(), kPatience);
  const auto end = Clock::now() + kPatience;
  pollfd hung_up{fd.get(), POLLRDHUP, 0};
  while (Clock::now() < end && poll(&hung_up, 1, 100) == 0) {
  }
  EXPECT_NE(hung_up.revents & (POLLRDHUP | POLLHUP | POLLERR), 0);
  EXPECT_EQ(ReadAll(fd).find("i=\"199999\""), std::string::npos);
}

TEST_F(MetricsServerTest, ARequestHasABound) {
  Start();
  const Fd fd = Connect();
  Send(fd, std::string(2 * MetricsServer::kMaxRequestBytes, 'x'));
  EXPECT_EQ(ReadAll(fd), "");
}

TEST_F(MetricsServerTest, EndsAtOnceWithConnectionsOpen) {
  Start();
  const Fd silent = Connect();
  const auto begin = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - begin, seconds(1));
}

TEST_F(MetricsServerTest, APortInUseIsAClearError) {
  Start();
  const auto second = MetricsServer::Start({"127.0.0.1", server_->port()}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("Address already in use"),
            std::string::npos)
      << second.status();
}

}  // namespace
}  // namespace maypole
