// Operations whose input comes later than their submission, as from a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

using Values = std::vector<int32_t>;

// Submits the operation without its input: the other ranks would read wrong
// data.
void SubmitEmpty(World& w, uint32_t rank, Tensor& t) {
  t.op->input_ready = false;
  EXPECT_TRUE(w.Submit(rank, t).ok());
  std::fill(t.input.begin(), t.input.end(), -1000);
}

void Write(World& w, uint32_t rank, Tensor& t, const Values& values) {
  std::copy(values.begin(), values.end(), t.input.begin());
  w.cores[rank]->InputReady(t.op);
}

TEST(RankCoreInputTest, ARankArrivesOnlyWithItsInput) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {0, 0}, Op::kSum);
  Tensor b = Make(Kind::kAllreduce, "x", {10, 20}, Op::kSum);
  SubmitEmpty(w, 0, a);
  EXPECT_TRUE(w.Submit(1, b).ok());
  w.Settle();
  EXPECT_FALSE(a.op->done.load());
  EXPECT_FALSE(b.op->done.load());
  uint64_t late = 0;
  EXPECT_EQ(w.cores[0]->WaitsFor(*a.op, &late), WaitFor::kInput);
  EXPECT_EQ(w.cores[1]->WaitsFor(*b.op, &late), WaitFor::kRanks);
  EXPECT_EQ(late, 1u);
  Write(w, 0, a, {1, 2});
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.output, (Values{11, 22}));
  EXPECT_EQ(b.output, (Values{11, 22}));
  EXPECT_EQ(w.cores[0]->outstanding(), 0u);
}

TEST(RankCoreInputTest, ItsNameIsPendingFromTheSubmission) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1});
  Tensor again = Make(Kind::kAllreduce, "x", {1});
  SubmitEmpty(w, 0, a);
  EXPECT_EQ(w.Submit(0, again).code(), Code::kAlreadyExists);
}

// Unnamed operations are matched by the order of submission, whichever input
// is ready first.
TEST(RankCoreInputTest, UnnamedOperationsKeepTheirOrder) {
  World w(2);
  Tensor first = Make(Kind::kAllreduce, "", {0}, Op::kSum);
  Tensor second = Make(Kind::kAllreduce, "", {0}, Op::kSum);
  SubmitEmpty(w, 0, first);
  SubmitEmpty(w, 0, second);
  Write(w, 0, second, {200});
  w.Settle();
  Tensor one = Make(Kind::kAllreduce, "", {1}, Op::kSum);
  Tensor two = Make(Kind::kAllreduce, "", {2}, Op::kSum);
  EXPECT_TRUE(w.Submit(1, one).ok());
  EXPECT_TRUE(w.Submit(1, two).ok());
  w.Settle();
  Write(w, 0, first, {100});
  w.Settle();
  EXPECT_EQ(one.output, Values{101});
  EXPECT_EQ(two.output, Values{202});
}

TEST(RankCoreInputTest, AnAbortEndsItBeforeItsInputIsReady) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1});
  SubmitEmpty(w, 0, a);
  w.Settle();
  w.board->Abort(Code::kAborted, "rank 1 has died");
  w.Settle();
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(a.op->status.message(), "allreduce 'x': rank 1 has died");
  w.cores[0]->InputReady(a.op);  // the GPU is done later: nothing happens
  EXPECT_EQ(w.cores[0]->outstanding(), 0u);
}

TEST(RankCoreInputTest, AFailedInputEndsTheEpoch) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1});
  SubmitEmpty(w, 0, a);
  w.cores[0]->InputFailed(*a.op, Status(Code::kInternal, "CUDA error 700"));
  w.Settle();
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(w.board->AbortStatus().code(), Code::kInternal);
  EXPECT_EQ(a.op->status.message(), "rank 0: allreduce 'x': CUDA error 700");
}

TEST(RankCoreInputTest, AfterShutdownALateInputDoesNothing) {
  World w(2);
  Tensor a = Make(Kind::kAllreduce, "x", {1});
  SubmitEmpty(w, 0, a);
  w.cores[0]->Leave();
  w.cores[0]->FailAll(Status(Code::kAborted, "shut down"));
  ASSERT_TRUE(a.op->done.load());
  w.cores[0]->InputReady(a.op);
  EXPECT_EQ(w.cores[0]->outstanding(), 0u);
}

// Random ranks submit random operations with and without their inputs, which
// arrive in any order and between any steps.
class RandomInputs : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomInputs, ResultsDoNotDependOnWhenInputsCome) {
  constexpr uint32_t kRanks = 3;
  World w(kRanks, GetParam());
  struct Late {
    uint32_t rank;
    Tensor* tensor;
    Values values;
  };
  for (int round = 0; round < 30; ++round) {
    const int names = 1 + static_cast<int>(w.random() % 5);
    std::vector<std::vector<Tensor>> tensors(kRanks);
    std::vector<Values> sums;
    std::vector<Late> lates;
    for (int n = 0; n < names; ++n) {
      const size_t size = w.random() % 2 == 0 ? 3 : 3000;
      const bool unnamed = w.random() % 2 == 0;
      sums.emplace_back(size, 0);
      for (uint32_t r = 0; r < kRanks; ++r) {
        Values values(size);
        for (size_t i = 0; i < size; ++i) {
          values[i] = static_cast<int32_t>(w.random() % 1000);
          sums.back()[i] += values[i];
        }
        tensors[r].push_back(Make(Kind::kAllreduce,
                                  unnamed ? "" : "n" + std::to_string(n),
                                  values, Op::kSum));
      }
    }
    for (uint32_t r = 0; r < kRanks; ++r) {
      for (Tensor& t : tensors[r]) {
        if (w.random() % 2 == 0) {
          const Values values = t.input;
          SubmitEmpty(w, r, t);
          lates.push_back({r, &t, values});
        } else {
          EXPECT_TRUE(w.Submit(r, t).ok());
        }
        for (uint32_t steps = w.random() % 10; steps > 0; --steps) w.Step();
      }
    }
    std::shuffle(lates.begin(), lates.end(), w.random);
    for (const Late& late : lates) {
      Write(w, late.rank, *late.tensor, late.values);
      for (uint32_t steps = w.random() % 10; steps > 0; --steps) w.Step();
    }
    w.Settle();
    for (uint32_t r = 0; r < kRanks; ++r) {
      for (int n = 0; n < names; ++n) {
        ASSERT_TRUE(tensors[r][n].op->done.load());
        ASSERT_EQ(tensors[r][n].output, sums[n]);
      }
      ASSERT_EQ(w.cores[r]->outstanding(), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomInputs, testing::Range(1u, 21u));

}  // namespace
}  // namespace maypole
