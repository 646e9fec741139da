// Operations whose tensors lie in GPU memory that ranks share with the
// executor.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/testing/on_gpu_testing.h"

namespace maypole {
namespace {

TEST(GpuPlaceTest, AWordHoldsAPlace) {
  for (const GpuPlace& place :
       {GpuPlace{1, 0, 0},
        GpuPlace{kMaxGpuMemories, kMaxGpus - 1,
                 kMaxGpuMemoryBytes - kGpuPlaceAlignment},
        GpuPlace{7, 3, 12 * kGpuPlaceAlignment}}) {
    EXPECT_EQ(UnpackGpuPlace(PackGpuPlace(place)), place);
    EXPECT_NE(PackGpuPlace(place), kNoGpuPlace);
  }
}

TEST(RankCoreGpuTest, TheExecutorReducesWhatAllRanksHaveOnOneGpu) {
  World w(3);
  std::vector<Tensor> t;
  std::vector<std::shared_ptr<OnGpu>> staged;
  for (uint32_t r = 0; r < 3; ++r) {
    t.push_back(Make(Kind::kAllreduce, "x", {1, 2}, Op::kSum));
  }
  for (uint32_t r = 0; r < 3; ++r) staged.push_back(SubmitOnGpu(w, r, t[r], 5));
  w.Settle();
  EXPECT_TRUE(IsReady(w, t[0]));
  for (const Tensor& tensor : t) EXPECT_FALSE(tensor.op->done.load());
  Commit(w, t[0]);
  w.Settle();
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(t[r].op->done.load());
    EXPECT_TRUE(t[r].op->status.ok());
    EXPECT_TRUE(staged[r]->result_on_gpu);
    EXPECT_EQ(staged[r]->asked, 0);
    EXPECT_EQ(w.cores[r]->outstanding(), 0u);
  }
}

TEST(RankCoreGpuTest, OneTensorOnTheHostMakesItRunThere) {
  World w(3);
  Tensor a = Make(Kind::kAllreduce, "x", {1, 2}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {10, 20}, Op::kSum);
  Tensor c = Make(Kind::kAllreduce, "x", {100, 200}, Op::kSum);
  const auto on_a = SubmitOnGpu(w, 0, a);
  const auto on_b = SubmitOnGpu(w, 1, b);
  EXPECT_TRUE(w.Submit(2, c).ok());
  w.Settle();
  for (int i = 0; i < 4; ++i) w.Settle();  // nothing moves while a copy runs
  EXPECT_FALSE(IsReady(w, a));
  for (const Tensor* t : {&a, &b, &c}) {
    ASSERT_TRUE(t->op->done.load());
    EXPECT_EQ(t->output, (Values{111, 222}));
  }
  EXPECT_FALSE(on_a->result_on_gpu || on_b->result_on_gpu);
}

TEST(RankCoreGpuTest, TwoGpusMakeItRunOnTheHost) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", Values(1000, 1), Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", Values(1000, 2), Op::kSum);
  SubmitOnGpu(w, 0, a, 0);
  SubmitOnGpu(w, 1, b, 1);
  for (int i = 0; i < 4; ++i) w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.output, Values(1000, 3));
  EXPECT_EQ(b.output, Values(1000, 3));
}

TEST(RankCoreGpuTest, AMismatchIsFoundBeforeTheExecutorSeesIt) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1, 2}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {1, 2, 3}, Op::kSum);
  SubmitOnGpu(w, 0, a);
  SubmitOnGpu(w, 1, b);
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.op->status.code(), Code::kFailedPrecondition);
  EXPECT_FALSE(IsReady(w, a));
}

TEST(RankCoreGpuTest, AnInputThatIsLostEndsTheRanksPart) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {2}, Op::kSum);
  const auto on_a = SubmitOnGpu(w, 0, a);
  on_a->error = Status(Code::kInternal, "CUDA error 700");
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  EXPECT_EQ(w.shells[0]->broken.message(), "allreduce 'x': CUDA error 700");
}

// Until the GPU is done, it may write to the tensors.
TEST(RankCoreGpuTest, AnAbortWaitsForTheGpu) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {2}, Op::kSum);
  SubmitOnGpu(w, 0, a);
  SubmitOnGpu(w, 1, b);
  w.Settle();
  w.board->header().gpu_runs.store(1);
  w.board->Abort(Code::kAborted, "rank 1 has died");
  w.Settle();
  EXPECT_FALSE(a.op->done.load());
  w.board->header().gpu_runs.store(0);
  w.Settle();
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(a.op->status.message(), "allreduce 'x': rank 1 has died");
}

// The executor has committed, but died before it queued the ticket.
TEST(RankCoreGpuTest, ACommitBeforeAnAbortCounts) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {2}, Op::kSum);
  const auto on_a = SubmitOnGpu(w, 0, a);
  SubmitOnGpu(w, 1, b);
  w.Settle();
  w.board->slot(a.op->slot).on_gpus.store(Tagged(a.op->generation, 1));
  w.board->Decide(a.op->slot, a.op->generation, Outcome::kCommitted);
  w.board->Abort(Code::kAborted, "the executor died");
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_TRUE(a.op->status.ok() && b.op->status.ok());
  EXPECT_TRUE(on_a->result_on_gpu);
}

}  // namespace
}  // namespace maypole
