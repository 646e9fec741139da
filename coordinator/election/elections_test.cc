// Elections with its threads, on a store in memory.
#include "coordinator/election/elections.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = StoreCall::Kind;

// What all stores of a test share.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Holder> holder;
  LeaseId last_lease = 0;
  uint64_t revision = 0;
  uint64_t changes = 0;  // how often the holder has gone
  bool down = false;

  // `mutex` is held.
  void LoseHolder() {
    holder.reset();
    ++changes;
    changed.notify_all();
  }
};

// A store whose leases end only by being revoked.
class FakeStore : public ElectionStore {
 public:
  FakeStore(std::shared_ptr<Shared> shared, std::string value)
      : shared_(std::move(shared)), value_(std::move(value)) {}

  StoreAnswer Call(const StoreCall& call) override {
    std::lock_guard lock(shared_->mutex);
    if (shared_->down) return CallFailed{"the store is down"};
    switch (call.kind) {
      case Kind::kGrant:
        return LeaseGranted{++shared_->last_lease, seconds(1)};
      case Kind::kRenew:
        return LeaseRenewed{seconds(1)};
      case Kind::kRevoke:
        if (shared_->holder && shared_->holder->lease == call.lease) {
          shared_->LoseHolder();
        }
        return LeaseRevoked{};
      case Kind::kClaim:
        if (!shared_->holder) {
          shared_->holder = Holder{value_, call.lease, ++shared_->revision};
        }
        break;
      case Kind::kLook:
        break;
    }
    return Seen{shared_->holder};
  }

  void Watch(const std::function<void()>& changed) override {
    std::unique_lock lock(shared_->mutex);
    // Like etcd's watch from the first revision on: it misses no change from
    // before the call.
    uint64_t seen = 0;
    while (!stopped_) {
      shared_->changed.wait(
          lock, [&] { return stopped_ || shared_->changes != seen; });
      seen = shared_->changes;
      lock.unlock();
      changed();
      lock.lock();
    }
  }

  void Stop() override {
    std::lock_guard lock(shared_->mutex);
    stopped_ = true;
    shared_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::string value_;
  bool stopped_ = false;
};

class ElectionsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Elections> Stand(const std::string& address,
                                   Leadership* leadership) {
    ElectionsOptions options;
    options.address = address;
    options.ttl = seconds(1);
    options.on_lead_until = [this](BootInstant until) { until_ = until; };
    options.on_lost = [this](const std::string& reason) {
      std::lock_guard lock(shared_->mutex);
      lost_ = reason;
    };
    return std::make_unique<Elections>(
        options,
        std::make_unique<FakeStore>(shared_, HolderValue(address, "abc")),
        leadership);
  }
  template <typename F>
  static bool Eventually(F&& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  std::string lost() {
    std::lock_guard lock(shared_->mutex);
    return lost_;
  }

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::atomic<BootInstant> until_{};
  std::string lost_;
};

TEST_F(ElectionsTest, OneLeadsAndTheOtherFollowsWhenItResigns) {
  Leadership a, b;
  auto first = Stand("a:1", &a);
  ASSERT_TRUE(Eventually([&] { return a.Leads(); }));
  EXPECT_EQ(a.term(), 1u);
  const auto second = Stand("b:1", &b);
  ASSERT_TRUE(Eventually([&] { return b.leader().address == "a:1"; }));
  EXPECT_FALSE(b.Leads());
  first.reset();
  EXPECT_FALSE(a.Leads());
  EXPECT_TRUE(Eventually([&] { return b.Leads(); }));
  EXPECT_EQ(b.term(), 2u);
  EXPECT_EQ(lost(), "");
}

TEST_F(ElectionsTest, ALeaderRenewsAndIsLostWithTheStore) {
  Leadership a;
  const auto elections = Stand("a:1", &a);
  ASSERT_TRUE(Eventually([&] { return a.Leads(); }));
  const BootInstant first = until_;
  ASSERT_TRUE(Eventually([&] { return until_.load() > first; }));
  {
    std::lock_guard lock(shared_->mutex);
    shared_->down = true;
  }
  ASSERT_TRUE(Eventually([&] { return !lost().empty(); }));
  EXPECT_FALSE(a.Leads());
  EXPECT_THAT(lost(), HasSubstr("the store is down"));
}

TEST_F(ElectionsTest, ALeaderWhoseKeyIsDeletedIsLost) {
  Leadership a;
  const auto elections = Stand("a:1", &a);
  ASSERT_TRUE(Eventually([&] { return a.Leads(); }));
  {
    std::lock_guard lock(shared_->mutex);
    shared_->LoseHolder();
  }
  ASSERT_TRUE(Eventually([&] { return !lost().empty(); }));
  EXPECT_THAT(lost(), HasSubstr("deleted"));
}

TEST(HolderValue, KeepsTheAddress) {
  EXPECT_EQ(AddressOf(HolderValue("h:4001", "abc")), "h:4001");
  EXPECT_EQ(AddressOf("odd"), "odd");
}

}  // namespace
}  // namespace maypole::coordinator
