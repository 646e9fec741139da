// Inside an epoch: endpoints, presence, runs, mismatches, ranks that leave.
#include "coordinator/core/coordinator_epoch.h"

#include <string>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kFailedPrecondition =
    static_cast<int>(absl::StatusCode::kFailedPrecondition);
constexpr int kAborted = static_cast<int>(absl::StatusCode::kAborted);

proto::ExecutorMessage Endpoint(const std::vector<std::string>& addresses) {
  proto::ExecutorMessage m;
  m.set_epoch(1);
  for (const auto& a : addresses) m.mutable_endpoint()->add_addresses(a);
  return m;
}

// Node n0 with ranks 0 and 1, node n1 with rank 2; epoch 1 runs.
class CoordinatorEpochTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 3, {0, 1});
    bed_.Ready(b_, 3, {2});
  }
  void Both(const proto::PresentOperation& on_a,
            const proto::PresentOperation& on_b) {
    bed_.From(a_, Present(1, {on_a}));
    bed_.From(b_, Present(1, {on_b}));
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(CoordinatorEpochTest, EndpointsAreTransposed) {
  bed_.From(a_, Endpoint({"", "a-for-b"}));
  EXPECT_FALSE(a_.Last().has_endpoints());
  bed_.From(b_, Endpoint({"b-for-a", ""}));
  ASSERT_TRUE(a_.Last().has_endpoints());
  ASSERT_TRUE(b_.Last().has_endpoints());
  EXPECT_EQ(a_.Last().epoch(), 1u);
  EXPECT_EQ(a_.Last().endpoints().addresses(0), "");
  EXPECT_EQ(a_.Last().endpoints().addresses(1), "b-for-a");
  EXPECT_EQ(b_.Last().endpoints().addresses(0), "a-for-b");
  EXPECT_EQ(b_.Last().endpoints().addresses(1), "");
}

TEST_F(CoordinatorEpochTest, BadEndpointsAreBadMessages) {
  bed_.From(a_, Endpoint({"x"}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CoordinatorEpochTest, TooLongAnAddressIsABadMessage) {
  bed_.From(a_, Endpoint({"", std::string(kMaxAddressBytes + 1, 'x')}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CoordinatorEpochTest, RunsWhatIsPresentEverywhere) {
  bed_.From(b_, Present(1, {Allreduce("x", {2}, {3})}));
  bed_.Pass(milliseconds(20));
  EXPECT_TRUE(b_.runs.empty());
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->runs.size(), 1u);
    const proto::Run& run = e->runs[0];
    EXPECT_EQ(run.run(), 1u);
    ASSERT_EQ(run.operations_size(), 1);
    EXPECT_EQ(run.operations(0).id(), 1u);
    EXPECT_EQ(run.operations(0).generation(), 1u);
    EXPECT_EQ(run.operations(0).identity().name(), "x");
    EXPECT_EQ(run.first_dims_size(), 0);
  }
  ASSERT_EQ(bed_.issued().size(), 1u);
  EXPECT_EQ(bed_.issued()[0].bytes, 12u);
  EXPECT_EQ(bed_.issued()[0].negotiation, milliseconds(20));
}

TEST_F(CoordinatorEpochTest, LaterGenerationsGoByIdAndNeedNoIdentity) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  proto::PresentOperation on_a = Allreduce("x", {0, 1}, {5}, 2);
  proto::PresentOperation on_b = Allreduce("x", {2}, {5}, 2);
  on_a.set_id(1);
  on_a.clear_identity();
  on_b.set_id(1);
  on_b.clear_identity();
  Both(on_a, on_b);
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(a_.runs[1].run(), 2u);
  EXPECT_EQ(a_.runs[1].operations(0).id(), 1u);
  EXPECT_EQ(a_.runs[1].operations(0).generation(), 2u);
  EXPECT_FALSE(a_.runs[1].operations(0).has_identity());
}

proto::PresentOperation AsBefore(uint32_t id, uint32_t generation) {
  proto::PresentOperation op;
  op.set_id(id);
  op.set_generation(generation);
  op.set_as_before(true);
  return op;
}

TEST_F(CoordinatorEpochTest, AReportAsBeforeHasTheSignatureOfTheLastRun) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  Both(AsBefore(1, 2), AsBefore(1, 2));
  ASSERT_EQ(a_.runs.size(), 2u);
  EXPECT_EQ(bed_.issued()[1].bytes, 12u);
  // One node reports `as_before`, the other does not.
  Both(Allreduce("x", {0, 1}, {3}, 3), AsBefore(1, 3));
  Both(AsBefore(1, 4), Allreduce("x", {2}, {3}, 4));
  ASSERT_EQ(b_.runs.size(), 4u);
  // All submit another shape; from then on that one is as before.
  Both(Allreduce("x", {0, 1}, {5}, 5), Allreduce("x", {2}, {5}, 5));
  Both(AsBefore(1, 6), AsBefore(1, 6));
  ASSERT_EQ(a_.runs.size(), 6u);
  EXPECT_EQ(bed_.issued()[5].bytes, 20u);
}

TEST_F(CoordinatorEpochTest, AReportAsBeforeMayNotFitAnotherNodes) {
  for (const bool first : {true, false}) {
    const std::string name = first ? "x" : "y";
    const uint32_t id = first ? 1 : 2;
    Both(Allreduce(name, {0, 1}, {3}), Allreduce(name, {2}, {3}));
    if (first) {
      Both(AsBefore(id, 2), Allreduce(name, {2}, {4}, 2));
    } else {
      bed_.From(b_, Present(1, {Allreduce(name, {2}, {4}, 2)}));
      bed_.From(a_, Present(1, {AsBefore(id, 2)}));
    }
    ASSERT_FALSE(a_.failures.empty());
    EXPECT_THAT(a_.failures.back().message(),
                AllOf(HasSubstr(name), HasSubstr("[3]"), HasSubstr("[4]"),
                      HasSubstr("ranks 0,1")));
    // The last run counts, not a failed operation.
    Both(AsBefore(id, 3), AsBefore(id, 3));
    EXPECT_EQ(bed_.issued().back().bytes, 12u);
  }
}

TEST_F(CoordinatorEpochTest, AReportAsBeforeOfNothingIsABadMessage) {
  Both(Allgather("g", {0, 1}, {4, 0}, 10), Allgather("g", {2}, {7}, 10));
  bed_.From(a_, Present(1, {AsBefore(1, 2)}));  // sizes are missing
  ASSERT_TRUE(a_.refused);
  EXPECT_THAT(a_.refused->message(), HasSubstr("reported as before"));
}

TEST_F(CoordinatorEpochTest, AReportAsBeforeSaysNothingElse) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  proto::PresentOperation op = Allreduce("x", {2}, {3}, 2);
  op.set_as_before(true);
  bed_.From(b_, Present(1, {op}));
  EXPECT_TRUE(b_.refused);
}

proto::PresentOperation InputsSent(uint32_t id, uint32_t generation) {
  proto::PresentOperation op = AsBefore(id, generation);
  op.set_inputs_sent(true);
  return op;
}

TEST_F(CoordinatorEpochTest, ARunNeedsTheInputsOfAllNodes) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  Both(InputsSent(1, 2), AsBefore(1, 2));
  Both(AsBefore(1, 3), InputsSent(1, 3));
  Both(InputsSent(1, 4), InputsSent(1, 4));
  Both(AsBefore(1, 5), AsBefore(1, 5));
  ASSERT_EQ(a_.runs.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(a_.runs[i].inputs_sent(), i == 3) << i;
    EXPECT_EQ(b_.runs[i].inputs_sent(), i == 3) << i;
  }
}

TEST_F(CoordinatorEpochTest, ARunNeedsTheInputsOfAllItsOperations) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  Both(Allreduce("y", {0, 1}, {3}), Allreduce("y", {2}, {3}));
  for (uint32_t g = 2; g < 4; ++g) {
    const auto y = g == 2 ? AsBefore(2, g) : InputsSent(2, g);
    bed_.From(a_, Present(1, {InputsSent(1, g), InputsSent(2, g)}));
    bed_.From(b_, Present(1, {InputsSent(1, g), y}));
    ASSERT_EQ(a_.runs.size(), size_t{g + 1});
    EXPECT_EQ(a_.runs.back().operations_size(), 2);
    EXPECT_EQ(a_.runs.back().inputs_sent(), g == 3);
  }
}

TEST_F(CoordinatorEpochTest, InputsAreSentOnlyOfReductions) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  Both(Broadcast("b", {0, 1}, {3}, 0), Broadcast("b", {2}, {3}, 0));
  bed_.From(b_, Present(1, {InputsSent(2, 2)}));
  ASSERT_TRUE(b_.refused);
  EXPECT_THAT(b_.refused->message(), HasSubstr("inputs were sent"));
}

TEST_F(CoordinatorEpochTest, InputsAreNotSentOfAnotherSignature) {
  Both(Allreduce("x", {0, 1}, {3}), Allreduce("x", {2}, {3}));
  proto::PresentOperation op = Allreduce("x", {0, 1}, {3}, 2);
  op.set_inputs_sent(true);
  bed_.From(a_, Present(1, {op}));
  EXPECT_TRUE(a_.refused);
}

TEST_F(CoordinatorEpochTest, FusesWhatOneMessageMakesPresent) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3}),
                            Broadcast("b", {0, 1}, {3}, 0),
                            Allreduce("y", {0, 1}, {2, 2})}));
  bed_.From(
      b_, Present(1, {Allreduce("y", {2}, {2, 2}), Broadcast("b", {2}, {3}, 0),
                      Allreduce("x", {2}, {3})}));
  ASSERT_EQ(a_.runs.size(), 2u);
  ASSERT_EQ(a_.runs[0].operations_size(), 2);
  EXPECT_EQ(a_.runs[0].operations(0).identity().name(), "y");
  EXPECT_EQ(a_.runs[0].operations(1).identity().name(), "x");
  EXPECT_EQ(a_.runs[1].operations(0).identity().name(), "b");
}

TEST_F(CoordinatorEpochTest, AllgatherGetsFirstDimensionsByGlobalRank) {
  Both(Allgather("g", {0, 1}, {4, 0}, 10), Allgather("g", {2}, {7}, 10));
  ASSERT_EQ(b_.runs.size(), 1u);
  const auto& dims = b_.runs[0].first_dims();
  EXPECT_THAT(dims, ::testing::ElementsAre(4, 0, 7));
  EXPECT_EQ(bed_.issued()[0].bytes, 11u * 10 * 4);
}

TEST_F(CoordinatorEpochTest, AnAllgatherBeyondAllMemoryFails) {
  const int64_t rows = int64_t{1} << 43;
  proto::PresentOperation on_a = Allgather("g", {0, 1}, {1, rows}, 10);
  Both(on_a, Allgather("g", {2}, {7}, 10));
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_THAT(b_.failures[0].message(), HasSubstr("2^44 bytes are allowed"));
}

TEST_F(CoordinatorEpochTest, AMismatchFailsOnAllNodesNamingRanksAndValues) {
  Both(Allreduce("loss", {0, 1}, {3}), Allreduce("loss", {2}, {4}));
  for (const Executor* e : {&a_, &b_}) {
    EXPECT_TRUE(e->runs.empty());
    ASSERT_EQ(e->failures.size(), 1u);
    const proto::OperationFailed& f = e->failures[0];
    EXPECT_EQ(e->Last().epoch(), 1u);
    EXPECT_EQ(f.id(), 1u);
    EXPECT_EQ(f.identity().name(), "loss");
    EXPECT_EQ(f.generation(), 1u);
    EXPECT_EQ(f.code(), kFailedPrecondition);
    EXPECT_THAT(f.message(),
                AllOf(HasSubstr("allreduce 'loss'"), HasSubstr("ranks 0,1"),
                      HasSubstr("[3]"), HasSubstr("rank 2"), HasSubstr("[4]")));
  }
  EXPECT_EQ(bed_.Count(ErrorKind::kMismatch), 1);
  // The name is free again.
  Both(Allreduce("loss", {0, 1}, {3}, 2), Allreduce("loss", {2}, {3}, 2));
  ASSERT_EQ(a_.runs.size(), 1u);
  EXPECT_FALSE(a_.runs[0].operations(0).has_identity());
}

TEST_F(CoordinatorEpochTest, AMismatchWithinANodeIsFoundToo) {
  proto::PresentOperation on_a = Allreduce("x", {0}, {3});
  *on_a.add_signatures() = Allreduce("x", {1}, {5}).signatures(0);
  Both(on_a, Allreduce("x", {2}, {3}));
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_THAT(b_.failures[0].message(),
              AllOf(HasSubstr("rank 1"), HasSubstr("[5]")));
}

TEST_F(CoordinatorEpochTest, MismatchesOfOtherThings) {
  auto change = [](auto f) {
    proto::PresentOperation op = Broadcast("x", {2}, {3}, 0);
    f(op.mutable_signatures(0));
    return op;
  };
  using S = proto::LocalSignature;
  const std::vector<std::pair<proto::PresentOperation, std::string>> cases = {
      {change([](S* s) { s->set_dtype(8); }), "dtypes"},
      {change([](S* s) { s->set_root(1); }), "root ranks"},
      {change([](S* s) { s->set_device(1); }), "devices"},
  };
  uint32_t generation = 0;
  for (auto [op, word] : cases) {
    proto::PresentOperation on_a = Broadcast("x", {0, 1}, {3}, 0);
    on_a.set_generation(++generation);
    op.set_generation(generation);
    Both(on_a, op);
    ASSERT_EQ(a_.failures.size(), generation) << word;
    EXPECT_THAT(a_.failures.back().message(), HasSubstr(word));
  }
}

TEST_F(CoordinatorEpochTest, ARootOutsideTheJobFails) {
  Both(Broadcast("w", {0, 1}, {3}, 3), Broadcast("w", {2}, {3}, 3));
  ASSERT_EQ(a_.failures.size(), 1u);
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_THAT(a_.failures[0].message(),
              AllOf(HasSubstr("broadcast 'w'"), HasSubstr("root rank 3"),
                    HasSubstr("3 ranks")));
}

TEST_F(CoordinatorEpochTest, DifferentGenerationsFailEachWithItsOwn) {
  Both(Allreduce("x", {0, 1}, {3}, 1), Allreduce("x", {2}, {3}, 4));
  ASSERT_EQ(a_.failures.size(), 1u);
  ASSERT_EQ(b_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].generation(), 1u);
  EXPECT_EQ(b_.failures[0].generation(), 4u);
  EXPECT_THAT(a_.failures[0].message(), HasSubstr("equally often"));
}

TEST_F(CoordinatorEpochTest, ALeavingRankFailsWhatWaitsAndWhatComesLater) {
  Both(Allreduce("done", {0, 1}, {3}), Allreduce("done", {2}, {3}));
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Gone(1, 2, true));
  for (const Executor* e : {&a_, &b_}) {
    int left = 0;
    for (const auto& m : e->inbox) {
      if (!m.has_rank_left()) continue;
      ++left;
      EXPECT_EQ(m.rank_left().rank(), 2u);
      EXPECT_THAT(m.rank_left().message(),
                  HasSubstr("rank 2 (node n1) has shut down"));
    }
    EXPECT_EQ(left, 1);
    EXPECT_EQ(e->runs.size(), 1u);
  }
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].code(), kAborted);
  EXPECT_EQ(a_.failures[0].message(),
            "rank 2 (node n1) has shut down; allreduce 'x' needs it");
  EXPECT_TRUE(b_.failures.empty());  // it has not reported x
  bed_.From(a_, Present(1, {Allreduce("y", {0, 1}, {3})}));
  ASSERT_EQ(a_.failures.size(), 2u);
  EXPECT_EQ(a_.failures[1].identity().name(), "y");
  EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
  EXPECT_EQ(bed_.Count(ErrorKind::kRankLeft), 1);
}

TEST_F(CoordinatorEpochTest, BadPresenceIsABadMessage) {
  std::vector<proto::PresentOperation> bad(12, Allreduce("x", {0, 1}, {3}));
  bad[0].set_id(9);
  bad[1].mutable_identity()->set_kind(99);
  bad[2].mutable_identity()->set_process_set(5);
  bad[3].mutable_identity()->set_name(std::string(600, 'x'));
  bad[4].mutable_signatures(0)->set_dtype(99);
  bad[5].mutable_signatures(0)->set_shape(0, -1);
  bad[6].mutable_signatures(0)->mutable_ranks()->RemoveLast();
  bad[7].mutable_signatures(0)->set_ranks(0, 2);
  bad[8].mutable_signatures(0)->set_shape(0, int64_t{1} << 60);
  bad[9].clear_signatures();
  bad[10].mutable_signatures(0)->mutable_shape()->Resize(20, 1);
  bad[11] = Allgather("g", {0, 1}, {3}, 1);  // one dimension for two ranks
  for (const auto& op : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    bed.Ready(a, 2, {0, 1});
    bed.From(a, Present(1, {op}));
    EXPECT_TRUE(a.refused) << op.ShortDebugString();
    EXPECT_TRUE(a.runs.empty());
  }
}

TEST_F(CoordinatorEpochTest, ReportingTwiceIsABadMessage) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3}, 2)}));
  ASSERT_TRUE(a_.refused);
  EXPECT_THAT(a_.refused->message(), HasSubstr("reported twice"));
}

TEST_F(CoordinatorEpochTest, TooManyNamesFailTheOperationAlone) {
  for (size_t i = 0; i < kMaxOperations; ++i) {
    const std::string name = "t" + std::to_string(i);
    bed_.From(a_, Present(1, {Allreduce(name, {0, 1}, {3})}));
  }
  EXPECT_TRUE(a_.failures.empty());
  bed_.From(a_, Present(1, {Allreduce("more", {0, 1}, {3})}));
  EXPECT_FALSE(a_.refused);
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].id(), 0u);
  EXPECT_EQ(a_.failures[0].identity().name(), "more");
  EXPECT_THAT(a_.failures[0].message(),
              HasSubstr("16384 operations of the job are pending"));
}

TEST(EpochMessageTest, LongExecuteMessagesAreCut) {
  Config config;
  config.fusion_threshold = 0;
  TestBed bed(config);
  Executor& a = bed.Connect("j", "n0");
  bed.Ready(a, 1, {0});
  std::vector<proto::PresentOperation> operations;
  constexpr size_t kOperations = 5000;
  for (size_t i = 0; i < kOperations; ++i) {
    std::string name = std::to_string(i);
    name.resize(500, 'x');
    operations.push_back(Allreduce(name, {0}, {3}));
  }
  bed.From(a, Present(1, operations));
  EXPECT_EQ(a.runs.size(), kOperations);
  size_t executes = 0;
  for (const auto& m : a.inbox) {
    if (!m.has_execute()) continue;
    ++executes;
    EXPECT_LT(m.ByteSizeLong(), kMaxMessageBytes / 2);
  }
  EXPECT_EQ(executes, 3u);
  for (size_t i = 0; i < kOperations; ++i) {
    ASSERT_EQ(a.runs[i].run(), i + 1);
  }
}

TEST(EpochMessageTest, OneNodeNeedsNoEndpoints) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  bed.Ready(a, 2, {0, 1});
  bed.From(a, Present(1, {Allreduce("x", {0, 1}, {3})}));
  EXPECT_EQ(a.runs.size(), 1u);
}

// --- Buckets -----------------------------------------------------------------

constexpr int kNames = 3;

// Steps of three allreduces, learned by the first.
class BucketTest : public CoordinatorEpochTest {
 protected:
  void SetUp() override {
    CoordinatorEpochTest::SetUp();
    for (int i = 0; i < kNames; ++i) Both(i, 1);
    ASSERT_EQ(a_.runs.size(), 3u);
  }
  static proto::PresentOperation Make(int name,
                                      const std::vector<uint32_t>& ranks,
                                      uint32_t generation) {
    return Allreduce("t" + std::to_string(name), ranks, {4}, generation);
  }
  using CoordinatorEpochTest::Both;
  void Both(int name, uint32_t generation) {
    Both(Make(name, {0, 1}, generation), Make(name, {2}, generation));
  }
  static proto::ExecutorMessage Urgent(uint32_t id, uint32_t generation) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    proto::UrgentOperation* op = m.mutable_presence()->add_urgent();
    op->set_id(id);
    op->set_generation(generation);
    return m;
  }
  // The ids of the run after those of the first step.
  std::vector<uint32_t> Run(const Executor& e, size_t i) {
    std::vector<uint32_t> ids;
    if (e.runs.size() <= 3 + i) return ids;
    for (const auto& op : e.runs[3 + i].operations()) ids.push_back(op.id());
    return ids;
  }
};

TEST_F(BucketTest, ASecondStepIsOneRunInTheOrderOfTheFirst) {
  for (const int name : {2, 0, 1}) {
    EXPECT_EQ(a_.runs.size(), 3u);
    Both(name, 2);
  }
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->runs.size(), 4u);
    EXPECT_EQ(Run(*e, 0), (std::vector<uint32_t>{1, 2, 3}));
    EXPECT_EQ(e->runs[3].run(), 4u);
  }
  EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(BucketTest, WhatIsMissingIsNotWaitedForLongerThanTheAge) {
  Both(1, 2);
  Both(0, 2);
  EXPECT_EQ(a_.runs.size(), 3u);
  EXPECT_EQ(bed_.core().totals().pending_operations, 2u);
  bed_.Pass(milliseconds(5));
  EXPECT_EQ(Run(a_, 0), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(Run(b_, 0), (std::vector<uint32_t>{1, 2}));
  Both(2, 2);
  EXPECT_EQ(Run(b_, 1), (std::vector<uint32_t>{3}));
}

TEST_F(BucketTest, AWaitOnOneNodeRunsWhatIsHeld) {
  Both(0, 2);
  Both(1, 2);
  bed_.From(b_, Urgent(1, 1));  // of the step before: answered long ago
  EXPECT_EQ(a_.runs.size(), 3u);
  bed_.From(b_, Urgent(1, 2));
  EXPECT_EQ(Run(a_, 0), (std::vector<uint32_t>{1, 2}));
  bed_.From(b_, Urgent(1, 2));  // crossed with the run
  EXPECT_EQ(a_.runs.size(), 4u);
}

TEST_F(BucketTest, AWaitIsRememberedUntilItIsPresentEverywhere) {
  Both(0, 2);
  bed_.From(b_, Present(1, {Make(1, {2}, 2)}));
  bed_.From(b_, Urgent(2, 2));
  EXPECT_EQ(a_.runs.size(), 3u);
  bed_.From(a_, Present(1, {Make(1, {0, 1}, 2)}));
  EXPECT_EQ(Run(a_, 0), (std::vector<uint32_t>{1, 2}));
  // Not into the next generation.
  Both(2, 2);
  Both(1, 3);
  EXPECT_EQ(a_.runs.size(), 5u);
}

TEST_F(BucketTest, AnUrgencyThatComesWithThePresenceCounts) {
  Both(0, 2);
  auto awaited = Make(1, {2}, 2);
  awaited.set_urgency(static_cast<uint32_t>(Urgency::kImmediate));
  Both(Make(1, {0, 1}, 2), awaited);
  EXPECT_EQ(Run(a_, 0), (std::vector<uint32_t>{1, 2}));
}

TEST_F(BucketTest, AWaitForAnUnknownIdIsABadMessage) {
  bed_.From(a_, Urgent(4, 1));
  EXPECT_TRUE(a_.refused);
}

TEST_F(BucketTest, AnUnknownUrgencyIsABadMessage) {
  auto unknown = Make(1, {2}, 2);
  unknown.set_urgency(3);
  bed_.From(b_, Present(1, {unknown}));
  EXPECT_TRUE(b_.refused);
}

TEST_F(BucketTest, ARankThatLeavesFailsWhatIsHeld) {
  Both(0, 2);
  bed_.From(b_, Gone(1, 2, true));
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_EQ(a_.failures[0].id(), 1u);
  EXPECT_EQ(a_.failures[0].generation(), 2u);
  ASSERT_EQ(b_.failures.size(), 1u);
  bed_.Pass(milliseconds(50));
  EXPECT_EQ(a_.runs.size(), 3u);
}

}  // namespace
}  // namespace maypole::coordinator
