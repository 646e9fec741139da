#include "client/session/stall_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

// The text for a stalled wait always names a reason.
TEST(StallTextTest, SaysForWhatAnOperationWaits) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "a", std::vector<int32_t>(5000, 1));
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *a.op),
            "the executor of this node has not answered yet");
  w.Settle();
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *a.op),
            "rank 1 of this node: not submitted yet");
}

TEST(StallTextTest, NamesTheRanksThatDoNotMove) {
  World w(2);
  std::vector<Tensor> all;
  for (uint32_t r = 0; r < 2; ++r) {
    all.push_back(Make(Kind::kAllreduce, "a", std::vector<int32_t>(5000, 1)));
    EXPECT_TRUE(w.Submit(r, all[r]).ok());
  }
  w.Settle();
  EXPECT_TRUE(all[0].op->done && all[1].op->done);
  for (Tensor& t : all) {
    t = Make(Kind::kAllreduce, "a", std::vector<int32_t>(5000, 1));
  }
  EXPECT_TRUE(w.Submit(0, all[0]).ok());
  EXPECT_TRUE(w.Submit(1, all[1]).ok());
  for (int i = 0; i < 100; ++i) w.cores[0]->Step();
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *all[0].op),
            "it runs, but its data does not move; still in it: ranks 0, 1");
  w.Settle();
}

TEST(StallTextTest, SaysForWhatAJoinAndARequestWait) {
  World w(2);
  const auto join = w.Join(0);
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *join),
            "rank 1 of this node: not joined yet");
  w.Join(1);
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *join),
            "not all ranks of the job have joined");
  w.Settle();
  auto set = std::make_shared<Operation>();
  set->control = Control::kSetRequest;
  set->name = "new process set";
  set->ranks = {0, 1};
  EXPECT_TRUE(w.Start(0, set).ok());
  EXPECT_EQ(StallText(*w.board, *w.cores[0], *set),
            "not all ranks of the job have asked for it");
}

}  // namespace
}  // namespace maypole
