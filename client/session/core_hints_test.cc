#include "client/session/core_hints.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace maypole {
namespace {

class CoreHintsTest : public testing::Test {
 protected:
  void SetUp() override {
    BoardConfig config;
    config.size = config.local_size = 3;
    config.slots = 64;
    config.runs = 2;
    config.chunk_bytes = 4096;
    config.ring_depth = 2;
    for (int i = 0; i < 3; ++i) config.global_rank[i] = i;
    const Status s = Board::Create(config, &board_);
    ASSERT_TRUE(s.ok()) << s.message();
    for (uint32_t i = 0; i < 3; ++i) {
      ranks_.push_back(std::make_unique<CoreHints>(board_.get(), i));
    }
  }

  std::unique_ptr<Board> board_;
  std::vector<std::unique_ptr<CoreHints>> ranks_;
  const std::vector<uint32_t> all_{0, 1, 2};
};

TEST_F(CoreHintsTest, NobodyHasWaitedYet) {
  const uint32_t core = ranks_[0]->Publish(0);
  EXPECT_FALSE(ranks_[0]->PeerOn(core, all_));  // it is no peer of itself
}

TEST_F(CoreHintsTest, APeerOnTheSameCore) {
  ranks_[1]->Publish(0);
  ranks_[2]->Publish(1);
  EXPECT_TRUE(ranks_[0]->PeerOn(ranks_[0]->Publish(0), all_));
  EXPECT_TRUE(ranks_[0]->PeerOn(ranks_[0]->Publish(1), all_));
  EXPECT_FALSE(ranks_[0]->PeerOn(ranks_[0]->Publish(2), all_));
}

TEST_F(CoreHintsTest, OnlyRanksOfTheProcessSetCount) {
  ranks_[1]->Publish(4);
  const uint32_t core = ranks_[0]->Publish(4);
  EXPECT_FALSE(ranks_[0]->PeerOn(core, std::vector<uint32_t>{0, 2}));
  EXPECT_TRUE(ranks_[0]->PeerOn(core, std::vector<uint32_t>{0, 1}));
}

TEST_F(CoreHintsTest, ARankThatMovesOrSleepsIsGone) {
  const uint32_t core = ranks_[0]->Publish(1);
  ranks_[1]->Publish(1);
  ranks_[1]->Publish(0);
  EXPECT_FALSE(ranks_[0]->PeerOn(core, all_));
  ranks_[1]->Publish(1);
  EXPECT_TRUE(ranks_[0]->PeerOn(core, all_));
  ranks_[1]->Withdraw();
  EXPECT_FALSE(ranks_[0]->PeerOn(core, all_));
}

// Where sched_getcpu() fails, ranks must not all seem to share one core.
TEST_F(CoreHintsTest, UnknownCoresAreNotShared) {
  ranks_[1]->Publish(-1);
  EXPECT_FALSE(ranks_[0]->PeerOn(ranks_[0]->Publish(-1), all_));
}

// For ThreadSanitizer: ranks publish while others look, and two threads of one
// rank also publish.
TEST_F(CoreHintsTest, RanksPublishWhileOthersLook) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      CoreHints& mine = *ranks_[i % 3];
      for (int n = 0; n < 1000; ++n) {
        mine.PeerOn(mine.Publish(n % 2), all_);
        if (n % 10 == 0) mine.Withdraw();
      }
      mine.Publish(7);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(ranks_[0]->PeerOn(ranks_[0]->Publish(7), all_));
}

}  // namespace
}  // namespace maypole
