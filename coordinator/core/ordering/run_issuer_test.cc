#include "coordinator/core/ordering/run_issuer.h"

#include "coordinator/core/testing/epoch_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::IsEmpty;

// Two nodes with two ranks each.
class RunIssuerTest : public ::testing::Test {
 protected:
  NegotiatedOperation* Report(size_t node,
                              const proto::PresentOperation& message) {
    NegotiatedOperation* op = *table_.Resolve(message);
    EXPECT_TRUE(table_.Note(Time(1), node, message, op).ok());
    return op;
  }
  // Both nodes report it.
  ReadyOperation Ready(const std::string& name) {
    Report(0, Allreduce(name, {0, 1}, {3}));
    return *table_.Validate(*Report(1, Allreduce(name, {2, 3}, {3})));
  }

  EpochBed bed_{2};
  ProcessSets sets_{&bed_.nodes, &bed_.departures, 4};
  OperationTable table_{&bed_.nodes.members(), &sets_};
  Steps steps_{1 << 20};
  RunIssuer runs_{&bed_.nodes, &sets_, &table_, &steps_, 1 << 20};
};

TEST_F(RunIssuerTest, RunsHaveOneOrderAndNumbersWithoutGaps) {
  Release release;
  release.loose.push_back(Ready("x"));
  release.loose.push_back(Ready("y"));
  runs_.Issue(Time(2), release);  // they fuse
  Release next;
  next.loose.push_back(Ready("z"));
  runs_.Issue(Time(3), next);
  const auto sent = bed_.Take();
  ASSERT_EQ(sent.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const proto::Run& run = sent[i].second.execute().runs(0);
    EXPECT_EQ(sent[i].first, i % 2);
    EXPECT_EQ(run.run(), i / 2 + 1);
    EXPECT_EQ(run.decision(), i / 2 + 1);
    EXPECT_EQ(run.operations_size(), i < 2 ? 2 : 1);
  }
  EXPECT_EQ(table_.pending(), 0u);
}

TEST_F(RunIssuerTest, OnlyWhoHasReportedLearnsOfAFailure) {
  NegotiatedOperation* op = Report(1, Allreduce("x", {2, 3}, {3}));
  runs_.Fail(op, absl::AbortedError("why"));
  const auto sent = bed_.Take();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, 1u);
  EXPECT_EQ(sent[0].second.operation_failed().message(), "why");
  EXPECT_EQ(sent[0].second.operation_failed().decision(), 1u);
  EXPECT_EQ(table_.pending(), 0u);
}

TEST_F(RunIssuerTest, AnotherCoordinatorsRunGetsTheNodesNextNumber) {
  runs_.Restore(1, 6);
  proto::Decision decision;
  decision.mutable_run()->set_process_set(0);
  runs_.Reissue(1, decision);
  EXPECT_EQ(bed_.Take()[0].second.execute().runs(0).run(), 7u);
  decision.mutable_run()->set_process_set(3);  // there is no such set
  runs_.Reissue(1, decision);
  EXPECT_THAT(bed_.Take(), IsEmpty());
}

}  // namespace
}  // namespace maypole::coordinator
