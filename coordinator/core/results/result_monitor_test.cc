// What happens to a job whose ranks' results differ.
#include "coordinator/core/results/result_monitor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kText[] =
    "results differ: allreduce 'w' (call 1): ranks 0,1,2 have checksum "
    "00000007 of 400 bytes, rank 3 (node n1, host host-n1, pid 1003) has "
    "checksum 00000008 of 400 bytes; wrong is the copy of rank 3";

// Node n0 with ranks 0 and 1, n1 with 2 and 3.
class ResultsEpochTest : public ::testing::Test {
 protected:
  void Start(ChecksumMode mode) {
    bed_.checksums = static_cast<uint32_t>(mode);
    bed_.Ready(a_, 4, {0, 1});
    bed_.checksums = 0;  // the other node's ranks want none
    bed_.Ready(b_, 4, {2, 3});
  }
  static proto::ExecutorMessage Equal(uint32_t generation, uint32_t first) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    proto::Result* result = m.mutable_results()->add_results();
    result->mutable_identity()->set_name("w");
    result->set_id(1);
    result->set_generation(generation);
    AddCopies(result, 7, {first, first + 1});
    return m;
  }
  static proto::ExecutorMessage Different(uint32_t generation) {
    proto::ExecutorMessage m = Equal(generation, 2);
    proto::Result* result = m.mutable_results()->mutable_results(0);
    result->clear_copies();
    AddCopies(result, 7, {2});
    AddCopies(result, 8, {3});
    return m;
  }
  static void AddCopies(proto::Result* result, uint32_t checksum,
                        const std::vector<uint32_t>& ranks) {
    proto::ResultCopies* copies = result->add_copies();
    copies->set_checksum(checksum);
    copies->set_bytes(400);
    copies->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }

  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(ResultsEpochTest, TheGreatestModeHoldsForAllNodes) {
  Start(ChecksumMode::kWarn);
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_TRUE(e->inbox.at(0).has_epoch_start());
    EXPECT_EQ(e->inbox[0].epoch_start().checksums(), 1u);
  }
}

TEST_F(ResultsEpochTest, ADifferenceEndsTheEpochOnAllNodes) {
  Start(ChecksumMode::kFail);
  bed_.From(a_, Equal(1, 0));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.From(b_, Different(1));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].message(), kText);
  }
  EXPECT_EQ(bed_.Count(ErrorKind::kResultsDiffer), 1);
  EXPECT_THAT(bed_.log(),
              Contains(AllOf(HasSubstr("event=results_differ job=j epoch=1 "
                                       "kind=allreduce tensor=\"w\" call=1 "
                                       "wrong=\"rank 3\""),
                             HasSubstr(kText))));
}

TEST_F(ResultsEpochTest, AWarningLetsTheJobGoOn) {
  Start(ChecksumMode::kWarn);
  for (const uint32_t call : {1, 2}) {
    bed_.From(a_, Equal(call, 0));
    bed_.From(b_, Different(call));
  }
  EXPECT_THAT(a_.ends, IsEmpty());
  EXPECT_EQ(bed_.Count(ErrorKind::kResultsDiffer), 0);
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("tensor=\"w\" call=2")));
}

TEST_F(ResultsEpochTest, TheLogHasABound) {
  Start(ChecksumMode::kWarn);
  for (uint32_t call = 1; call <= kMaxDifferencesTold + 20; ++call) {
    bed_.From(a_, Equal(call, 0));
    bed_.From(b_, Different(call));
  }
  const auto lines = std::count_if(
      bed_.log().begin(), bed_.log().end(), [](const std::string& line) {
        return line.find("event=results_differ") != std::string::npos;
      });
  EXPECT_EQ(lines, static_cast<int64_t>(kMaxDifferencesTold));
}

TEST_F(ResultsEpochTest, WhatIsKnownWhenTheLastRankLeavesIsCompared) {
  Start(ChecksumMode::kFail);
  bed_.From(b_, Different(1));
  for (const uint32_t rank : {0, 1}) bed_.From(a_, Gone(1, rank, true));
  EXPECT_THAT(bed_.log(), Not(Contains(HasSubstr("results_differ"))));
  for (const uint32_t rank : {2, 3}) bed_.From(b_, Gone(1, rank, true));
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("suspects=\"ranks 2,3\"")));
}

TEST_F(ResultsEpochTest, ChecksumsThatNobodyHasAskedForAreABadMessage) {
  Start(ChecksumMode::kOff);
  bed_.From(a_, Equal(1, 0));
  EXPECT_TRUE(a_.refused);
}

}  // namespace
}  // namespace maypole::coordinator
