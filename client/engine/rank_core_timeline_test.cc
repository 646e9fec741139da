// What a rank records while the job's timeline is on.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

void CheckOrder(const Moments& m) {
  EXPECT_GT(m.submitted, 0);
  EXPECT_GE(m.arrived, m.submitted);
  EXPECT_GE(m.ended, m.arrived);
  if (m.begun != 0) {
    EXPECT_GE(m.begun, m.arrived);
    EXPECT_GE(m.ended, m.begun);
  }
}

TEST(RankCoreTimelineTest, RecordsOnlyWhatIsSubmittedWhileItIsOn) {
  World w(2);
  const auto run = [&](const std::string& name, size_t elements) {
    Tensor a = Make(Kind::kAllreduce, name, std::vector<int32_t>(elements, 1));
    Tensor b = Make(Kind::kAllreduce, name, std::vector<int32_t>(elements, 2));
    EXPECT_TRUE(w.Submit(0, a).ok());
    EXPECT_TRUE(w.Submit(1, b).ok());
    w.Settle();
    EXPECT_TRUE(a.op->done.load() && b.op->done.load());
  };
  run("off", 4);
  for (const auto& shell : w.shells) EXPECT_TRUE(shell->recorded.empty());
  w.board->SetTimeline(3);
  run("eager", 4);
  run("large", 2000);
  run("off", 4);
  w.board->SetTimeline(2);
  run("eager", 4);
  for (uint32_t r = 0; r < 2; ++r) {
    const auto& recorded = w.shells[r]->recorded;
    ASSERT_EQ(recorded.size(), 3u);
    EXPECT_EQ(recorded[0].first, "eager");
    EXPECT_EQ(recorded[0].second.number, 1u);
    EXPECT_EQ(recorded[1].first, "large");
    EXPECT_NE(recorded[1].second.begun, 0);
    // All ranks count a name's operations alike, even before the timeline.
    EXPECT_EQ(recorded[2].second.number, 2u);
    for (const auto& [name, moments] : recorded) CheckOrder(moments);
    EXPECT_EQ(w.cores[r]->unrecorded(), 0u);
  }
}

TEST(RankCoreTimelineTest, OperationsThatFailAreRecordedToo) {
  World w(2);
  w.board->SetTimeline(3);
  Tensor alone = Make(Kind::kAllreduce, "alone", {1});
  EXPECT_TRUE(w.Submit(0, alone).ok());
  Tensor queued = Make(Kind::kAllreduce, "", {1});
  EXPECT_TRUE(w.Submit(0, queued).ok());
  w.Settle();
  EXPECT_EQ(w.cores[0]->unrecorded(), 2u);
  EXPECT_TRUE(w.shells[0]->recorded.empty());
  w.cores[0]->FailAll(Status(Code::kAborted, "over"));
  EXPECT_EQ(w.cores[0]->unrecorded(), 0u);
  EXPECT_EQ(w.shells[0]->recorded.size(), 2u);
  for (const auto& [name, moments] : w.shells[0]->recorded) CheckOrder(moments);
}

// The slot of a name that was forgotten goes on counting where it was.
TEST(RankCoreTimelineTest, NumbersBeginAnewWithTheName) {
  World w(2);
  const auto run = [&](const std::string& name) {
    Tensor a = Make(Kind::kAllreduce, name, {1});
    Tensor b = Make(Kind::kAllreduce, name, {1});
    EXPECT_TRUE(w.Submit(0, a).ok());
    EXPECT_TRUE(w.Submit(1, b).ok());
    w.Settle();
    return a.op->slot;
  };
  run("x");
  const uint32_t slot = run("x");
  for (uint32_t r = 0; r < 2; ++r) w.Recall(r, {slot});
  w.Settle();
  w.Free(slot);
  w.board->SetTimeline(3);
  EXPECT_EQ(run("y"), slot);
  for (const auto& shell : w.shells) {
    ASSERT_EQ(shell->recorded.size(), 1u);
    EXPECT_EQ(shell->recorded[0].second.number, 1u);
  }
}

}  // namespace
}  // namespace maypole
