#include "worker/backend/reconnector.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/testing/peer_sockets.h"

namespace maypole::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReturnPause(50);
constexpr ConnectionId kToLower{.node = 0, .number = 2};
constexpr ConnectionId kToHigher{.node = 2, .number = 1};

handshake::Secret Key() {
  handshake::Secret key;
  key.fill(1);
  return key;
}

// Node 1 of three. Its calls are answered by the test.
class ReconnectorTest : public testing::Test {
 protected:
  void Open(milliseconds patience, bool encrypted = false) {
    reconnector_.emplace(ReconnectorOptions{
        .self = 1,
        .patience = patience,
        .return_pause = kReturnPause,
        .call = [this](const ConnectionId& id, uint32_t attempt,
                       auto) -> absl::StatusOr<Authenticated> {
          std::unique_lock lock(mutex_);
          calls_.emplace_back(id, attempt);
          changed_.notify_all();
          if (attempt > 0 && attempt <= refused_)
            return absl::UnavailableError("no route");
          auto [own, other] = SocketPair();
          others_.push_back(std::move(other));
          return Authenticated{std::move(own), Key()};
        },
        .reach =
            [this](const ConnectionId& id, auto) {
              std::lock_guard lock(mutex_);
              trials_.push_back(id);
              changed_.notify_all();
              return reachable_;
            },
        .open = [encrypted](const ConnectionId&,
                            Authenticated met) -> absl::StatusOr<PeerSocket> {
          if (!encrypted) return PeerSocket(std::move(met.socket));
          return PeerSocket::Encrypted(std::move(met.socket), met.tls_key,
                                       {.calls = true});
        },
        .is_own =
            [this](const ConnectionId&, const std::string&) {
              std::lock_guard lock(mutex_);
              return own_;
            },
        .on_moved =
            [this](const ConnectionId& id, const std::string&) {
              std::lock_guard lock(mutex_);
              moved_.push_back(id);
              changed_.notify_all();
            },
        .on_failed =
            [this](const ConnectionId& id, const std::string& why) {
              std::lock_guard lock(mutex_);
              failed_.emplace_back(id, why);
              changed_.notify_all();
            }});
  }
  void Await(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), condition));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t refused_ = 0;  // of the first attempts, which begin with 1
  bool own_ = true;       // new sockets are on their own network
  bool reachable_ = false;
  std::vector<ConnectionId> trials_;
  std::vector<std::pair<ConnectionId, uint32_t>> calls_;
  std::vector<Fd> others_;  // the peers' ends
  std::vector<ConnectionId> moved_;
  std::vector<std::pair<ConnectionId, std::string>> failed_;
  std::optional<Reconnector> reconnector_;
};

TEST_F(ReconnectorTest, CallsUntilTheNodeAnswers) {
  refused_ = 3;
  Open(milliseconds(20000));
  const auto supply = reconnector_->SupplyFor(kToLower);
  supply->ReportLost(ETIMEDOUT);
  Await([&] { return moved_.size() == 1; });
  EXPECT_EQ(moved_[0], kToLower);
  EXPECT_TRUE(supply->HasSocket());
  const std::vector<std::pair<ConnectionId, uint32_t>> want = {
      {kToLower, 1}, {kToLower, 2}, {kToLower, 3}, {kToLower, 4}};
  EXPECT_EQ(calls_, want);
  EXPECT_TRUE(failed_.empty());
}

TEST_F(ReconnectorTest, ANodeWithAHigherIndexCalls) {
  Open(milliseconds(20000));
  const auto supply = reconnector_->SupplyFor(kToHigher);
  supply->ReportLost(ETIMEDOUT);
  EXPECT_FALSE(supply->HasSocket());
  reconnector_->OnCall(kToHigher, {SocketPair().first, Key()});
  Await([&] { return moved_.size() == 1; });
  EXPECT_TRUE(supply->HasSocket());
  // Also before this end has noticed anything.
  const auto other = reconnector_->SupplyFor({2, 4});
  reconnector_->OnCall({2, 4}, {SocketPair().first, Key()});
  Await([&] { return moved_.size() == 2; });
  EXPECT_TRUE(other->HasSocket());
  EXPECT_TRUE(calls_.empty());
}

TEST_F(ReconnectorTest, EncryptedOnesMakeTheirHandshakeFirst) {
  Open(milliseconds(20000), /*encrypted=*/true);
  const auto supply = reconnector_->SupplyFor(kToLower);
  supply->ReportLost(ENETUNREACH);
  Await([&] { return others_.size() == 1; });
  EXPECT_FALSE(supply->HasSocket());
  auto peer = PeerSocket::Encrypted(std::move(others_[0]), Key(), {});
  ASSERT_TRUE(peer.ok());
  for (;;) {
    const absl::StatusOr<short> events = peer->Handshake();
    ASSERT_TRUE(events.ok()) << events.status();
    if (*events == 0) break;
    pollfd wait{peer->fd(), *events, 0};
    ASSERT_EQ(poll(&wait, 1, 20000), 1);
  }
  Await([&] { return moved_.size() == 1; });
  EXPECT_EQ(supply->Take()->Suite(), peer->Suite());
  EXPECT_EQ(calls_.size(), 1u);  // none while one was being made
}

TEST_F(ReconnectorTest, AnEndedHandshakeIsFollowedByAnotherCall) {
  Open(milliseconds(20000), /*encrypted=*/true);
  const auto supply = reconnector_->SupplyFor(kToLower);
  supply->ReportLost(ETIMEDOUT);
  Await([&] { return others_.size() == 1; });
  others_[0].Reset();
  Await([&] { return others_.size() == 2; });
  EXPECT_FALSE(supply->HasSocket());
}

TEST_F(ReconnectorTest, AfterSomeTimeItHasFailed) {
  refused_ = UINT32_MAX;
  Open(milliseconds(120));
  const auto called = reconnector_->SupplyFor(kToLower);
  const auto awaited = reconnector_->SupplyFor(kToHigher);
  called->ReportLost(ETIMEDOUT);
  awaited->ReportLost(EHOSTUNREACH);
  Await([&] { return failed_.size() == 2; });
  std::sort(failed_.begin(), failed_.end());
  EXPECT_EQ(failed_[0].first, kToLower);
  EXPECT_NE(failed_[0].second.find("--network_timeout"), std::string::npos);
  EXPECT_EQ(failed_[1].first, kToHigher);
  EXPECT_EQ(failed_[1].second, "No route to host");
  EXPECT_GE(calls_.size(), 1u);
}

TEST_F(ReconnectorTest, AStreamComesBackWhenItsNetworkDoes) {
  own_ = false;
  Open(milliseconds(20000));
  const auto supply = reconnector_->SupplyFor(kToLower);
  supply->ReportLost(ETIMEDOUT);
  Await([&] { return trials_.size() >= 3; });
  EXPECT_EQ(trials_[0], kToLower);
  EXPECT_FALSE(supply->TakeMove());
  std::atomic<int> wakes{0};
  supply->OnSocket([&] {
    ++wakes;
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  {
    std::lock_guard lock(mutex_);
    reachable_ = true;
  }
  Await([&] { return wakes > 0; });
  EXPECT_TRUE(supply->TakeMove());
  {
    std::lock_guard lock(mutex_);
    own_ = true;
  }
  supply->ReportLost(0);
  Await([&] { return moved_.size() == 2; });
  EXPECT_EQ(calls_.back(), std::make_pair(kToLower, 0u));  // its own network
  // Lost once more, it is left alone for twice as long.
  size_t trials = 0;
  {
    std::lock_guard lock(mutex_);
    own_ = false;
    trials = trials_.size();
  }
  const auto begin = std::chrono::steady_clock::now();
  supply->ReportLost(ENETDOWN);
  Await([&] { return trials_.size() > trials; });
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * kReturnPause);
  EXPECT_TRUE(failed_.empty());
}

TEST_F(ReconnectorTest, OnlyTheNodeThatCallsTriesToComeBack) {
  Open(milliseconds(20000));
  reconnector_->SupplyFor(kToHigher, /*on_own=*/false);
  const auto supply = reconnector_->SupplyFor(kToLower, /*on_own=*/false);
  Await([&] { return trials_.size() >= 5; });
  reconnector_->Stop();
  EXPECT_EQ(trials_, std::vector<ConnectionId>(trials_.size(), kToLower));
}

TEST_F(ReconnectorTest, StopsWhileStreamsAreWithoutSockets) {
  refused_ = UINT32_MAX;
  Open(milliseconds(20000));
  const auto called = reconnector_->SupplyFor(kToLower);
  called->ReportLost(ETIMEDOUT);
  Await([&] { return !calls_.empty(); });
  reconnector_->Stop();
  const size_t calls = calls_.size();
  reconnector_->OnCall(kToHigher, {SocketPair().first, Key()});
  called->ReportLost(ETIMEDOUT);
  EXPECT_EQ(calls_.size(), calls);
  EXPECT_TRUE(failed_.empty());
}

}  // namespace
}  // namespace maypole::worker
