#include "tests/bench/contest/contest.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "common/wire/unix_socket.h"
#include "gtest/gtest.h"

namespace maypole::bench {
namespace {

// Rank 0 of 1: a sum equals its input. A test may make it wrong.
class FakeReducer : public Reducer {
 public:
  std::function<void(int operation, const std::vector<Buffer>&)> spoil;
  int operations = 0;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Allreduce(const std::vector<Buffer>& buffers) override {
    if (spoil) spoil(operations, buffers);
    ++operations;
    return Status();
  }
};

// The conductor's side of the socket.
class ContestTest : public testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/mpbXXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    const Fd line(open((dir_ + "/line").c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(ftruncate(line.get(), 4096), 0);
    ASSERT_TRUE(ListenUnix(dir_ + "/socket", 0600, &listener_).ok());
    setenv("BENCH_CONTESTANT", "fake", 1);
    setenv("BENCH_CONDUCTOR", (dir_ + "/socket").c_str(), 1);
    setenv("BENCH_START_LINE", (dir_ + "/line").c_str(), 1);
    rank_ = std::thread([this] {
      Contest contest(&reducer_);
      outcome_ = contest.Run();
    });
    ASSERT_TRUE(AcceptUnix(listener_.get(), &socket_).ok());
  }

  void TearDown() override {
    socket_.Reset();
    if (rank_.joinable()) rank_.join();
    std::filesystem::remove_all(dir_);
  }

  std::string Receive() {
    Received received;
    EXPECT_TRUE(ReceiveMessage(socket_.get(), 4096, 10000, &received).ok());
    return std::string(received.data.begin(), received.data.end());
  }

  std::string Ask(const std::string& line) {
    EXPECT_TRUE(SendMessage(socket_.get(), line.data(), line.size()).ok());
    return Receive();
  }

  FakeReducer reducer_;
  std::string dir_;
  Fd listener_, socket_;
  std::thread rank_;
  Status outcome_;
};

TEST_F(ContestTest, ATurnIsItsRoundsAndTheirOperations) {
  EXPECT_EQ(Receive(), "hello fake 0 " + std::to_string(getpid()) + " private");
  EXPECT_EQ(Ask("open 3 1KiB private 5"), "ok");
  const std::string times = Ask("turn 3 100 1 2");
  EXPECT_EQ(times.substr(0, 6), "times ");
  EXPECT_EQ(std::count(times.begin(), times.end(), ' '), 2);
  EXPECT_EQ(reducer_.operations, 15);
  EXPECT_EQ(Ask("close 3"), "closed 15 0");
  EXPECT_EQ(Ask("quit"), "ok");
  rank_.join();
  EXPECT_TRUE(outcome_.ok()) << outcome_.message();
}

TEST_F(ContestTest, AWrongElementEndsIt) {
  reducer_.spoil = [](int operation, const std::vector<Buffer>& buffers) {
    if (operation == 7) buffers[0].data[255] = 0.5;
  };
  Receive();
  EXPECT_EQ(Ask("open 0 1KiB private 4"), "ok");
  EXPECT_EQ(Ask("turn 0 10 0 3").substr(0, 75),
            "error wrong result: tensor private.bench.1024, round 11, index "
            "255 of 256: ");
  rank_.join();
  EXPECT_EQ(outcome_.code(), Code::kDataLoss);
}

TEST_F(ContestTest, WhatItCannotDoIsSaid) {
  Receive();
  EXPECT_EQ(Ask("open 0 4 arena 1"), "error this library has no arena");
}

TEST_F(ContestTest, AConductorThatIsGoneEndsIt) {
  Receive();
  socket_.Reset();
  rank_.join();
  EXPECT_TRUE(outcome_.ok()) << outcome_.message();
}

}  // namespace
}  // namespace maypole::bench
