// Names come and go: ranks give slots back, and other names get them.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "client/engine/rank_core.h"
#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

using Slots = std::vector<uint32_t>;

// Both ranks reduce under the name; true if the sum is right.
bool Reduces(World& w, const std::string& name, int32_t value) {
  Tensor a = Make(Kind::kAllreduce, name, {value, 1});
  Tensor b = Make(Kind::kAllreduce, name, {value, 2});
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  return a.op->done.load() && a.op->status.ok() &&
         a.output == std::vector<int32_t>{2 * value, 3} && b.op->status.ok() &&
         b.output == a.output;
}

TEST(RankCoreNamesTest, AnIdleNameIsGivenBackAndItsSlotBecomesAnothers) {
  World w(2);
  EXPECT_TRUE(Reduces(w, "x", 5));
  EXPECT_TRUE(Reduces(w, "x", 6));
  for (const uint32_t r : {0, 1}) {
    EXPECT_FALSE(w.cores[r]->recalled());
    w.Recall(r, {0});
    EXPECT_TRUE(w.cores[r]->recalled());
  }
  w.Settle();
  for (const uint32_t r : {0, 1}) {
    EXPECT_FALSE(w.cores[r]->recalled());
    EXPECT_EQ(w.returned[r], Slots{0});
  }
  w.Free(0);
  EXPECT_TRUE(Reduces(w, "y", 7));
  EXPECT_EQ(w.board->slot(0).identity.load(),
            IdentityHash(0, Kind::kAllreduce, "y"));
  EXPECT_TRUE(Reduces(w, "x", 8));  // has another slot now
  EXPECT_TRUE(Reduces(w, "y", 9));
}

TEST(RankCoreNamesTest, WhatIsPendingKeepsItsName) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1});
  EXPECT_TRUE(w.Submit(0, a).ok());
  w.Settle();
  for (const uint32_t r : {0, 1}) w.Recall(r, {0});
  w.Settle();
  EXPECT_EQ(w.returned[0], Slots{});
  EXPECT_EQ(w.returned[1], Slots{0});  // this rank had never used it
  Tensor b = Make(Kind::kAllreduce, "x", {2});
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.output, std::vector<int32_t>{3});
}

TEST(RankCoreNamesTest, ANameThatIsUsedAgainBeforeItsSlotIsFreeKeepsIt) {
  World w(2);
  EXPECT_TRUE(Reduces(w, "x", 5));
  w.Recall(0, {0});
  w.Settle();
  EXPECT_EQ(w.returned[0], Slots{0});
  EXPECT_TRUE(Reduces(w, "x", 6));
  EXPECT_EQ(w.board->arrival(0, 0).generation.load(), 2u);
}

// The slot's next name has another process set and uses rendezvous; rings,
// pools and tickets of the previous name must not disturb it.
TEST(RankCoreNamesTest, SlotsGoRoundAmongSetsAndSizes) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    World w(3, seed);
    const uint32_t pair = w.MakeSet({1, 2});
    std::set<uint32_t> used;
    for (int step = 0; step < 30; ++step) {
      const bool all = w.random() % 2 == 0;
      const size_t elements = w.random() % 3 == 0 ? 3000 : 1 + w.random() % 8;
      std::vector<Tensor> tensors;
      for (uint32_t r = all ? 0 : 1; r < 3; ++r) {
        tensors.push_back(Make(Kind::kAllreduce, "t" + std::to_string(step),
                               std::vector<int32_t>(elements, step + 1),
                               Op::kSum, all ? 0 : pair));
        EXPECT_TRUE(w.Submit(r, tensors.back()).ok());
      }
      w.Settle();
      for (const Tensor& t : tensors) {
        ASSERT_TRUE(t.op->done.load()) << seed << " " << step;
        ASSERT_EQ(
            t.output,
            std::vector<int32_t>(
                elements, (step + 1) * static_cast<int32_t>(tensors.size())));
      }
      const uint32_t slot = tensors[0].op->slot;
      used.insert(slot);
      // Sometimes two names stay.
      if (w.random() % 4 == 0) continue;
      for (uint32_t r = 0; r < 3; ++r) w.Recall(r, {slot});
      w.Settle();
      w.Free(slot);
    }
    EXPECT_LT(used.size(), 20u);
  }
}

// A rank that has joined finds the slots of other ranks' operations on the
// board, and must request these slots like any rank.
TEST(RankCoreNamesTest, WhoHasJoinedStandsInUnderNamesThatChange) {
  World w(2);
  EXPECT_TRUE(Reduces(w, "before", 5));
  const auto join = w.Join(1);
  for (int step = 0; step < 5; ++step) {
    Tensor a = Make(Kind::kAllreduce, "t" + std::to_string(step), {step, 4});
    EXPECT_TRUE(w.Submit(0, a).ok());
    w.Settle();
    ASSERT_TRUE(a.op->done.load()) << step;
    EXPECT_EQ(a.output, (std::vector<int32_t>{step, 4}));
    for (const uint32_t r : {0, 1}) w.Recall(r, {a.op->slot});
    w.Settle();
    for (const uint32_t r : {0, 1}) {
      EXPECT_EQ(w.returned[r].back(), a.op->slot);
    }
    w.Free(a.op->slot);
  }
  EXPECT_EQ(w.board->header().allotted.load(), 2u);
  const auto second = w.Join(0);
  w.Settle();
  EXPECT_TRUE(join->done.load() && second->done.load());
}

}  // namespace
}  // namespace maypole
