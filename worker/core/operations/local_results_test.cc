#include "worker/core/operations/local_results.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace maypole::worker {
namespace {

// Ranks 4, 5 and 6 are local ranks 0, 1 and 2.
SharedSet Locals(std::vector<uint32_t> locals, bool negotiated = false) {
  auto set = std::make_shared<NodeSet>();
  for (const uint32_t local : locals) {
    set->here.push_back(static_cast<int>(4 + local));
    set->ranks.push_back(static_cast<int>(4 + local));
  }
  if (negotiated) set->ranks.push_back(9);
  set->locals = std::move(locals);
  return set;
}

ResultOperation Operation(const SharedSet& set, uint32_t id = 0,
                          uint32_t generation = 1) {
  ResultOperation operation{.set = set, .id = id, .generation = generation};
  operation.identity.set_name("x");
  return operation;
}

session::ResultRecord Copy(uint32_t checksum, uint64_t bytes = 8) {
  session::ResultRecord record;
  record.checksum = checksum;
  record.bytes = bytes;
  return record;
}

session::ResultRecord None() {
  return Copy(0, session::ResultRecord::kNoResult);
}

// "11:4,6 22:5"
std::string Text(const proto::Result& result) {
  std::string out;
  for (const proto::ResultCopies& copies : result.copies()) {
    out += (out.empty() ? "" : " ") + std::to_string(copies.checksum()) + ":";
    for (int i = 0; i < copies.ranks_size(); ++i) {
      out += (i > 0 ? "," : "") + std::to_string(copies.ranks(i));
    }
  }
  return out;
}

TEST(LocalResultsTest, EqualCopiesOfThisNodeAloneAreOnlyCounted) {
  LocalResults results;
  results.Expect({3, 1}, Operation(Locals({0, 1})));
  results.Add({3, 1}, 0, Copy(11));
  EXPECT_TRUE(results.empty());
  results.Add({3, 1}, 1, Copy(11));
  const auto message = results.Take();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->equal(), 1u);
  EXPECT_EQ(message->unchecked(), 0u);
  EXPECT_EQ(message->results_size(), 0);
  EXPECT_EQ(results.undecided(), 0u);
  EXPECT_FALSE(results.Take());
}

// In any order of the ranks' records, over several operations.
TEST(LocalResultsTest, TheRankThatDiffersIsReportedInAnyOrder) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    LocalResults results;
    // By rank: its next operation; records of one rank keep their order.
    std::vector<uint32_t> next(3, 1);
    const SharedSet set = Locals({0, 1, 2});
    while (std::any_of(next.begin(), next.end(),
                       [](uint32_t n) { return n <= 5; })) {
      const uint32_t rank = random() % 3;
      const uint32_t g = next[rank];
      if (g > 5) continue;
      ++next[rank];
      results.Expect({0, g}, Operation(set, 0, g));
      const bool flipped = g == 4 && rank == 1;
      results.Add({0, g}, rank, Copy(flipped ? 22 : 11));
    }
    const auto message = results.Take();
    ASSERT_TRUE(message);
    EXPECT_EQ(message->equal(), 4u);
    ASSERT_EQ(message->results_size(), 1);
    EXPECT_EQ(message->results(0).generation(), 4u);
    const std::string text = Text(message->results(0));
    EXPECT_TRUE(text == "11:4,6 22:5" || text == "22:5 11:4,6") << text;
  }
}

TEST(LocalResultsTest, CopiesOfDifferentLengthsDiffer) {
  LocalResults results;
  results.Expect({0, 1}, Operation(Locals({0, 1})));
  results.Add({0, 1}, 0, Copy(11, 8));
  results.Add({0, 1}, 1, Copy(11, 16));
  EXPECT_TRUE(results.differs());
  EXPECT_EQ(results.Take()->results(0).copies_size(), 2);
  EXPECT_FALSE(results.differs());
}

TEST(LocalResultsTest, OperationsOfSeveralNodesAreAlwaysReported) {
  LocalResults results;
  results.Expect({2, 8}, Operation(Locals({0, 2}, true), 5, 3));
  results.Add({2, 8}, 2, Copy(11));
  results.Add({2, 8}, 0, Copy(11));
  const auto message = results.Take();
  ASSERT_TRUE(message && message->results_size() == 1);
  EXPECT_EQ(message->equal(), 0u);
  EXPECT_EQ(message->results(0).id(), 5u);
  EXPECT_EQ(message->results(0).generation(), 3u);
  EXPECT_EQ(message->results(0).identity().name(), "x");
  EXPECT_EQ(Text(message->results(0)), "11:4,6");
}

TEST(LocalResultsTest, RanksWithoutAResultAreLeftOut) {
  LocalResults results;
  results.Expect({0, 1}, Operation(Locals({0, 1}), 5));
  results.Add({0, 1}, 0, None());
  results.Add({0, 1}, 1, Copy(11));
  EXPECT_EQ(Text(results.Take()->results(0)), "11:5");
  results.Expect({0, 2}, Operation(Locals({0, 1}), 5));
  results.Add({0, 2}, 0, None());
  results.Add({0, 2}, 1, None());
  EXPECT_EQ(Text(results.Take()->results(0)), "") << "other nodes wait for it";
  results.Expect({1, 1}, Operation(Locals({0, 1})));
  results.Add({1, 1}, 0, None());
  results.Add({1, 1}, 1, Copy(11));
  EXPECT_FALSE(results.Take()) << "one copy is not compared";
}

TEST(LocalResultsTest, ARankThatHasLeftIsNotWaitedFor) {
  LocalResults results;
  results.Expect({0, 1}, Operation(Locals({0, 1, 2})));
  results.Expect({1, 1}, Operation(Locals({0, 1})));
  results.Add({0, 1}, 0, Copy(11));
  results.Add({0, 1}, 2, Copy(12));
  results.Forget(1);
  EXPECT_EQ(Text(results.Take()->results(0)), "11:4 12:6");
  EXPECT_EQ(results.undecided(), 1u);
  // Nor does it wait for a record of an operation that failed because the rank
  // has left.
  results.Expect({3, 1}, Operation(Locals({1, 2})));
  results.Add({3, 1}, 2, None());
  EXPECT_EQ(results.undecided(), 1u);
}

TEST(LocalResultsTest, ALaterUseOfTheNameShowsThatARecordIsLost) {
  LocalResults results;
  const SharedSet set = Locals({0, 1, 2});
  for (const uint32_t g : {1, 2}) results.Expect({0, g}, Operation(set));
  results.Add({0, 1}, 0, Copy(11));
  results.Add({0, 1}, 1, Copy(11));
  results.CountLost(1);  // rank 2's
  results.Add({0, 2}, 2, Copy(33));
  const auto message = results.Take();
  EXPECT_EQ(message->equal(), 1u) << "of the two that are there";
  EXPECT_EQ(message->unchecked(), 1u);
}

TEST(LocalResultsTest, BeyondTheLimitTheOldestIsDecided) {
  LocalResults results(2);
  const SharedSet set = Locals({0, 1, 2});
  for (const uint32_t slot : {9, 5, 7}) {
    results.Expect({slot, 1}, Operation(set));
    if (slot != 9) continue;
    results.Add({9, 1}, 0, Copy(11));
    results.Add({9, 1}, 1, Copy(12));
  }
  EXPECT_EQ(results.undecided(), 2u);
  EXPECT_EQ(Text(results.Take()->results(0)), "11:4 12:5");
  results.Add({9, 1}, 2, Copy(12));  // too late: it has no effect
  results.Expect({8, 1}, Operation(set));
  const auto message = results.Take();
  EXPECT_EQ(message->unchecked(), 1u) << "slot 5, of which nothing was known";
  EXPECT_EQ(message->results_size(), 0);
}

TEST(LocalResultsTest, ASecondRecordOfARankIsIgnored) {
  LocalResults results;
  results.Expect({0, 1}, Operation(Locals({0, 1})));
  results.Add({0, 1}, 0, Copy(11));
  results.Add({0, 1}, 0, Copy(12));
  results.Add({0, 1}, 1, Copy(11));
  EXPECT_EQ(results.Take()->equal(), 1u);
}

}  // namespace
}  // namespace maypole::worker
