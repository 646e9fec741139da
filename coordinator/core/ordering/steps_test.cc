#include "coordinator/core/ordering/steps.h"

#include <string>

#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using Ids = std::vector<std::vector<uint32_t>>;

ReadyOperation Operation(uint32_t id, int64_t elements = 4) {
  ReadyOperation op;
  op.id = id;
  op.signature.kind = Kind::kAllreduce;
  op.signature.dtype = DType::kFloat32;
  op.signature.dims = 1;
  op.signature.shape[0] = elements;
  op.bytes = op.signature.Bytes();
  return op;
}

class StepsTest : public ::testing::Test {
 protected:
  void Run(const std::vector<uint32_t>& ids, int64_t elements = 4) {
    std::vector<ReadyOperation> run;
    for (const uint32_t id : ids) run.push_back(Operation(id, elements));
    RunThese(run);
  }
  void RunThese(const std::vector<ReadyOperation>& run) {
    std::vector<const ReadyOperation*> operations;
    for (const ReadyOperation& op : run) operations.push_back(&op);
    steps_.OnRun(operations);
  }
  // The scheduled runs; places in buckets are in the order of the ids.
  Ids Scheduled() const {
    Ids out;
    for (const auto& run : steps_.Runs([](uint32_t id) { return id; })) {
      auto& ids = out.emplace_back();
      for (const ReadyOperation& op : run) ids.push_back(op.id);
    }
    return out;
  }
  // How many of these steps pass until they are scheduled; 0: they are not.
  int StepsUntilRepeats(const Ids& step, int most = 2000) {
    for (int n = 1; n <= most; ++n) {
      for (const auto& run : step) Run(run);
      if (steps_.repeats()) return n;
    }
    return 0;
  }
  Steps steps_{1 << 20};
};

TEST_F(StepsTest, EqualStepsAreScheduled) {
  // The end of the first step shows when the second one begins.
  EXPECT_EQ(StepsUntilRepeats({{1, 2}, {3}}), 3);
  EXPECT_EQ(Scheduled(), (Ids{{1, 2}, {3}}));
  EXPECT_TRUE(steps_.Has(2));
  EXPECT_FALSE(steps_.Has(4));
}

TEST_F(StepsTest, AStepMayBeASingleOperation) {
  EXPECT_EQ(StepsUntilRepeats({{5}}), 3);
  EXPECT_EQ(Scheduled(), (Ids{{5}}));
}

TEST_F(StepsTest, InTheMiddleOfAStepNothingIsScheduled) {
  StepsUntilRepeats({{1}, {2}});
  Run({1});
  EXPECT_FALSE(steps_.repeats());
  Run({2});
  EXPECT_TRUE(steps_.repeats());
}

TEST_F(StepsTest, OrderAndCutsMayDifferBetweenSteps) {
  Run({1, 2});
  Run({3});
  Run({3});
  Run({2});
  Run({1});
  Run({2, 1});
  Run({3});
  ASSERT_TRUE(steps_.repeats());
  EXPECT_EQ(Scheduled(), (Ids{{1, 2}, {3}}));
}

TEST_F(StepsTest, WhatNeverRanTogetherIsNotScheduledTogether) {
  EXPECT_EQ(StepsUntilRepeats({{2}, {1}, {3}}), 3);
  EXPECT_EQ(Scheduled(), (Ids{{2}, {1}, {3}}));
}

TEST_F(StepsTest, AnotherShapeBeginsAnew) {
  Run({1});
  Run({1});
  Run({1}, 8);
  Run({1}, 8);
  EXPECT_FALSE(steps_.repeats());
  Run({1}, 8);
  EXPECT_TRUE(steps_.repeats());
}

TEST_F(StepsTest, AnotherOperationBeginsAnew) {
  Run({1});
  Run({2});
  Run({1});
  Run({2});
  Run({9});
  EXPECT_EQ(StepsUntilRepeats({{1}, {2}}), 4);
}

TEST_F(StepsTest, StepsWithGathersOrGpusAreNotScheduled) {
  ReadyOperation gather = Operation(3);
  gather.signature.kind = Kind::kAllgather;
  ReadyOperation on_gpu = Operation(3);
  on_gpu.communicator = 1;
  for (const ReadyOperation& other : {gather, on_gpu}) {
    for (int step = 0; step < 10; ++step) {
      Run({1, 2});
      RunThese({other});
      EXPECT_FALSE(steps_.repeats());
    }
  }
}

TEST_F(StepsTest, ASteadyPartOfTheStepsIsNotMistakenForAStep) {
  for (int step = 0; step < 10; ++step) {
    for (const uint32_t id : {1, 1, 2}) {
      Run({id});
      EXPECT_FALSE(steps_.repeats());
    }
  }
}

TEST_F(StepsTest, PartsThatAreTooMuchForARunAreCut) {
  const int64_t half = (1 << 19) / 4;
  for (int step = 0; step < 2; ++step) {
    Run({1, 2}, half);
    Run({3}, half);
    Run({1}, half);
    Run({2, 3}, half);
  }
  ASSERT_TRUE(steps_.repeats());
  EXPECT_EQ(Scheduled(), (Ids{{1, 2}, {3}}));
}

TEST_F(StepsTest, AfterAScheduleThatWasLeftSoonMoreStepsAreNeeded) {
  EXPECT_EQ(StepsUntilRepeats({{1}}), 3);
  steps_.OnScheduleOver(2);
  EXPECT_EQ(StepsUntilRepeats({{1}}), 6);
  for (int n = 0; n < 20; ++n) steps_.OnScheduleOver(0);
  EXPECT_EQ(StepsUntilRepeats({{1}}), static_cast<int>(kMostEqualSteps));
  steps_.OnScheduleOver(kWorthwhileRounds);
  EXPECT_EQ(StepsUntilRepeats({{1}}), 3);
}

}  // namespace
}  // namespace maypole::coordinator
