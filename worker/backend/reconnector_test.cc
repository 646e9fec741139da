#include "worker/backend/reconnector.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
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
        .call = [this](const ConnectionId& id, uint32_t attempt,
                       auto) -> absl::StatusOr<Authenticated> {
          std::unique_lock lock(mutex_);
          calls_.emplace_back(id, attempt);
          changed_.notify_all();
          if (attempt < refused_) return absl::UnavailableError("no route");
          auto [own, other] = SocketPair();
          others_.push_back(std::move(other));
          return Authenticated{std::move(own), Key()};
        },
        .open = [encrypted](const ConnectionId&,
                            Authenticated met) -> absl::StatusOr<PeerSocket> {
          if (!encrypted) return PeerSocket(std::move(met.socket));
          return PeerSocket::Encrypted(std::move(met.socket), met.tls_key,
                                       {.calls = true});
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
  uint32_t refused_ = 0;  // the first attempts
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
      {kToLower, 0}, {kToLower, 1}, {kToLower, 2}, {kToLower, 3}};
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
