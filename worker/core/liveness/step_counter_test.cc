#include "worker/core/liveness/step_counter.h"

#include <gtest/gtest.h>

namespace maypole::worker {
namespace {

TEST(StepCounterTest, CountsHowOftenMostNamesCome) {
  StepCounter steps;
  EXPECT_EQ(steps.Count({}), 0u);
  EXPECT_EQ(steps.Count({1, 1, 1}), 1u);
  EXPECT_EQ(steps.Count({1, 1, 1}), 0u);
  EXPECT_EQ(steps.Count({11, 11, 11}), 10u);
  // In the middle of a step.
  EXPECT_EQ(steps.Count({14, 14, 13}), 3u);
}

TEST(StepCounterTest, SomeNamesComeSeldomOrOften) {
  StepCounter steps;
  steps.Count({5, 5, 5, 5, 5});
  EXPECT_EQ(steps.Count({25, 25, 25, 6, 45}), 20u);
  EXPECT_EQ(steps.Count({25, 25, 25, 7, 45}), 1u) << "validation, for example";
}

TEST(StepCounterTest, SlotsComeAndNamesChange) {
  StepCounter steps;
  steps.Count({3});
  EXPECT_EQ(steps.Count({4, 1}), 1u);
  // A slot has got another name, which begins where the last one ended; or the
  // epoch is new.
  EXPECT_EQ(steps.Count({0, 2}), 1u);
  EXPECT_EQ(steps.Count({2, 4}), 2u);
}

}  // namespace
}  // namespace maypole::worker
