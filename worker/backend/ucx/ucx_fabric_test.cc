// ucx_test_long runs it with a UCX.
#include "worker/backend/ucx/ucx_fabric.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <numeric>

namespace maypole::worker {
namespace {

using namespace std::chrono_literals;

// What has ended: {tag: failure}.
class Listener : public TransferListener {
 public:
  void OnEnded(uint64_t tag, const std::string& failure) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(ended_.emplace(tag, failure).second) << "twice: " << tag;
    changed_.notify_all();
  }
  std::string operator[](uint64_t tag) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.contains(tag); });
    return ended_[tag];
  }
  bool has(uint64_t tag) {
    std::lock_guard lock(mutex_);
    return ended_.contains(tag);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::string> ended_;
};

std::vector<std::byte> Pattern(size_t bytes, int seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  }
  return out;
}

// Two nodes in one process, 0 and 1.
class UcxFabricTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { SetUcxEnvironment(); }
  void SetUp() override { Open(20ms); }
  void Open(std::chrono::milliseconds grace) {
    for (uint32_t i = 0; i < 2; ++i) {
      fabrics_[i] = nullptr;
      failed_[i] = std::make_unique<Listener>();
      auto fabric = UcxFabric::Open(
          {.self = i,
           .nodes = 2,
           .failure_grace = grace,
           .on_failed = [this, i](uint32_t node, const std::string& why) {
             failed_[i]->OnEnded(node, why);
           }});
      ASSERT_TRUE(fabric.ok()) << fabric.status();
      fabrics_[i] = *std::move(fabric);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      fabrics_[i]->AddPeer(1 - i, fabrics_[1 - i]->address());
    }
    std::thread other([this] { Start(1); });
    Start(0);
    other.join();
  }
  void Start(uint32_t node) {
    const auto failure = fabrics_[node]->Start(20s, [] { return false; });
    EXPECT_FALSE(failure) << failure->why;
  }
  PeerLink* To(uint32_t from, uint32_t to) {
    return fabrics_[from]->LinkTo(to);
  }

  Listener sent_;
  Listener received_;
  std::unique_ptr<Listener>
      failed_[2];  // by who says it: which node has failed
  std::unique_ptr<UcxFabric> fabrics_[2];
};

TEST_F(UcxFabricTest, MessagesArriveWhicheverEndIsFirst) {
  uint64_t tag = 0;
  for (const size_t bytes : {1, 8, 1000, 8192, 65536, 1 << 20, 9 << 20}) {
    for (const bool receive_first : {false, true}) {
      for (const uint32_t from : {0u, 1u}) {
        const std::vector<std::byte> data = Pattern(bytes, from + 1);
        std::vector<std::byte> got(bytes);
        const auto receive = [&] {
          To(1 - from, from)->Receive(20, got.data(), bytes, {&received_, tag});
        };
        if (receive_first) receive();
        To(from, 1 - from)->Send(20, data.data(), bytes, {&sent_, tag});
        if (!receive_first) receive();
        ASSERT_EQ(received_[tag], "");
        ASSERT_EQ(sent_[tag], "");
        ASSERT_EQ(got, data) << bytes << " bytes from " << from;
        ++tag;
      }
    }
  }
}

// Both directions at once; receives of a slot in order, of slots in any.
TEST_F(UcxFabricTest, SlotsAreIndependentAndInOrderWithin) {
  constexpr int kMessages = 400;
  std::vector<std::vector<std::byte>> data[2];
  std::vector<std::vector<std::byte>> got[2];
  for (uint32_t from : {0u, 1u}) {
    for (int m = 0; m < kMessages; ++m) {
      const size_t bytes = 1 + m * 7919 % 30000;
      data[from].push_back(Pattern(bytes, m + static_cast<int>(from)));
      got[from].emplace_back(bytes);
    }
  }
  const auto tag = [](uint32_t from, int m) {
    return uint64_t{from} * 1000 + m;
  };
  for (int m = 0; m < kMessages; ++m) {
    for (uint32_t from : {0u, 1u}) {
      To(from, 1 - from)
          ->Send(m % 3, data[from][m].data(), data[from][m].size(),
                 {&sent_, tag(from, m)});
    }
  }
  for (int slot : {2, 0, 1}) {
    for (int m = slot; m < kMessages; m += 3) {
      for (uint32_t from : {0u, 1u}) {
        To(1 - from, from)
            ->Receive(slot, got[from][m].data(), got[from][m].size(),
                      {&received_, tag(from, m)});
      }
    }
  }
  for (uint32_t from : {0u, 1u}) {
    for (int m = 0; m < kMessages; ++m) {
      ASSERT_EQ(received_[tag(from, m)], "");
      ASSERT_EQ(sent_[tag(from, m)], "");
      ASSERT_EQ(got[from][m], data[from][m]) << m;
    }
  }
}

TEST_F(UcxFabricTest, CancelEndsWhatItsListenerWaitsFor) {
  std::vector<std::byte> a(100);
  std::vector<std::byte> b(8 << 20);
  Listener other;
  To(0, 1)->Receive(1, a.data(), a.size(), {&other, 1});
  To(0, 1)->Receive(2, a.data(), a.size(), {&received_, 2});
  To(0, 1)->Cancel(&received_);
  EXPECT_EQ(received_[2], "UCX: Request canceled");
  EXPECT_FALSE(other.has(1));
  // A great message waits for its receive, and cannot be taken back.
  To(0, 1)->Send(3, b.data(), b.size(), {&sent_, 3});
  EXPECT_FALSE(sent_.has(3));
  To(0, 1)->Cancel(&sent_);
  EXPECT_EQ(sent_[3], "a message was cancelled half-way");
  EXPECT_EQ(other[1], "a message was cancelled half-way");
  To(0, 1)->Send(4, a.data(), a.size(), {&sent_, 4});
  EXPECT_EQ(sent_[4], "a message was cancelled half-way");
}

TEST_F(UcxFabricTest, AMessageOfAnotherSizeIsAFailure) {
  for (const size_t bytes : {100, 300}) {
    Open(20ms);
    std::vector<std::byte> data(200);
    std::vector<std::byte> got(bytes);
    Listener mine;
    To(1, 0)->Send(1, data.data(), data.size(), {&mine, 0});
    To(0, 1)->Receive(1, got.data(), bytes, {&mine, 1});
    EXPECT_EQ(mine[1],
              "it has sent a message of another size than was expected");
    EXPECT_EQ(mine[0], "");
  }
}

TEST_F(UcxFabricTest, APeerThatHasEndedIsReportedWithWhatWaitsForIt) {
  std::vector<std::byte> data(1000);
  To(0, 1)->Receive(2, data.data(), data.size(), {&received_, 3});
  fabrics_[1].reset();
  EXPECT_NE(received_[3].find("UCX: "), std::string::npos);
  EXPECT_EQ((*failed_[0])[1], received_[3]);
  To(0, 1)->Send(3, data.data(), data.size(), {&sent_, 4});
  EXPECT_EQ(sent_[4], received_[3]);
}

TEST_F(UcxFabricTest, AFailureWaitsUntilItIsDue) {
  Open(1h);
  std::vector<std::byte> data(1000);
  To(0, 1)->Receive(2, data.data(), data.size(), {&received_, 2});
  To(0, 1)->Receive(2, data.data(), data.size(), {&received_, 3});
  fabrics_[1].reset();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(received_.has(2));
  To(0, 1)->Cancel(&received_);
  EXPECT_NE(received_[2], "");
  EXPECT_NE(received_[3], "");
  EXPECT_FALSE(failed_[0]->has(1));  // it does not matter any more
}

TEST_F(UcxFabricTest, CloseEndsWhatIsPosted) {
  std::vector<std::byte> data(8 << 20);
  To(0, 1)->Receive(1, data.data(), data.size(), {&received_, 1});
  To(0, 1)->Send(1, data.data(), data.size(), {&sent_, 1});
  fabrics_[0]->Close();
  EXPECT_EQ(received_[1], "closed");
  EXPECT_EQ(sent_[1], "closed");
  To(0, 1)->Send(1, data.data(), data.size(), {&sent_, 2});
  EXPECT_EQ(sent_[2], "closed");
}

TEST_F(UcxFabricTest, WhoDoesNotAnswerIsNamed) {
  auto a = UcxFabric::Open({.self = 0, .nodes = 3});
  auto b = UcxFabric::Open({.self = 2, .nodes = 3});
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  (*a)->AddPeer(2, (*b)->address());
  EXPECT_EQ((*a)->LinkTo(1), nullptr);
  const auto silent = (*a)->Start(50ms, [] { return false; });
  ASSERT_TRUE(silent);
  EXPECT_EQ(silent->node, 2u);
  EXPECT_NE(silent->why.find("has not answered over UCX"), std::string::npos)
      << silent->why;
}

TEST_F(UcxFabricTest, StartCanBeStopped) {
  auto a = UcxFabric::Open({.self = 0, .nodes = 2});
  auto b = UcxFabric::Open({.self = 1, .nodes = 2});
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  (*a)->AddPeer(1, (*b)->address());
  const auto stopped = (*a)->Start(1h, [] { return true; });
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->why, "stopped");
}

}  // namespace
}  // namespace maypole::worker
