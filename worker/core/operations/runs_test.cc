// The layout of runs, and when runs may start.
#include "worker/core/operations/runs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/operations/layout.h"

namespace maypole::worker {
namespace {

// Six ranks on three nodes, rank r on node r / 2; this is node 1.
class RunsTest : public testing::Test {
 protected:
  // Allots and reports generation 1 of one operation of the set, and puts it
  // into the run.
  void Report(const std::string& name, Signature s, const SharedSet& set,
              std::vector<int64_t> splits = {}) {
    bool is_new = false;
    const auto slot = slots_.Allot(set, s.kind, name, &is_new);
    ASSERT_TRUE(slot.ok()) << slot.status();
    s.process_set = set->id;
    SlotEntry* entry = slots_.Get(*slot);
    entry->reported = 1;
    entry->signatures.assign(set->locals.size(), s);
    entry->splits = std::move(splits);
    proto::RunOperation* op = run_.add_operations();
    op->set_generation(1);
    op->mutable_identity()->set_process_set(set->id);
    op->mutable_identity()->set_kind(static_cast<uint32_t>(s.kind));
    op->mutable_identity()->set_name(name);
  }
  SharedSet MakeSet(uint32_t id, const std::vector<int>& ranks) {
    EXPECT_TRUE(sets_.Add(id, ranks).ok());
    return sets_.Find(id);
  }
  // The next number is used up only by a run that fits.
  absl::Status Add() {
    run_.set_run(number_ + 1);
    const absl::Status s = queue_.Add(run_, &slots_);
    if (s.ok()) ++number_;
    return s;
  }
  RunSpec Take() {
    auto spec = queue_.Take();
    EXPECT_TRUE(spec.has_value());
    return spec.value_or(RunSpec{});
  }
  static Signature Rows(Kind kind, int64_t rows, int64_t columns) {
    Signature s;
    s.kind = kind;
    s.dtype = DType::kFloat32;
    s.dims = 2;
    s.shape[0] = rows;
    s.shape[1] = columns;
    return s;
  }

  SetTable sets_{{0, 0, 1, 1, 2, 2}, {2, 3}};
  SlotTable slots_{64};
  RunQueue queue_{6, 1, 4};
  proto::Run run_;
  uint64_t number_ = 0;
};

// Without a report there are no signatures from which to lay out a run.
TEST_F(RunsTest, WhatWasNeverReportedDoesNotRun) {
  bool is_new = false;
  ASSERT_TRUE(slots_.Allot(sets_.all(), Kind::kAllreduce, "a", &is_new).ok());
  proto::RunOperation* op = run_.add_operations();
  op->mutable_identity()->set_name("a");
  op->set_generation(0);
  EXPECT_TRUE(absl::IsInternal(Add()));
}

TEST_F(RunsTest, ARunHasMembersNodesAndDivisorOfItsSet) {
  Signature s = Rows(Kind::kAllreduce, 3, 2);
  s.op = Op::kAverage;
  s.postscale = 0.25;
  Report("a", s, MakeSet(1, {0, 3, 5}));
  ASSERT_TRUE(Add().ok());
  const RunSpec spec = Take();
  EXPECT_EQ(spec.members, 2u);
  EXPECT_EQ(spec.nodes, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(spec.finish.divisor, 3);
  EXPECT_EQ(spec.finish.scale, 0.25);
  EXPECT_EQ(spec.op, Op::kAverage);
  EXPECT_EQ(spec.bytes, 24u);
  run_.Clear();
  s.op = Op::kMax;
  Report("b", s, MakeSet(2, {2, 3, 4}));
  ASSERT_TRUE(Add().ok());
  const RunSpec second = Take();
  EXPECT_EQ(second.members, 3u);
  EXPECT_EQ(second.nodes, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(second.op, Op::kMax);
  EXPECT_EQ(second.finish.divisor, 1);
}

TEST_F(RunsTest, OperationsOfTwoSetsDoNotFitOneRun) {
  const Signature s = Rows(Kind::kAllreduce, 3, 2);
  Report("a", s, sets_.all());
  Report("a", s, MakeSet(1, {2, 4}));
  EXPECT_EQ(Add().code(), absl::StatusCode::kInternal);
}

TEST_F(RunsTest, ABroadcastBelongsToTheNodeOfItsRoot) {
  Signature s = Rows(Kind::kBroadcast, 3, 2);
  s.root = 4;
  Report("b", s, MakeSet(1, {2, 4}));
  ASSERT_TRUE(Add().ok());
  EXPECT_EQ(Take().blocks, (std::vector<NodeBlock>{{2, kAllNodes, 0, 24}}));
}

TEST_F(RunsTest, ABroadcastOfNothingHasNoBlocks) {
  Report("b", Rows(Kind::kBroadcast, 0, 2), sets_.all());
  ASSERT_TRUE(Add().ok());
  EXPECT_TRUE(Take().blocks.empty());
}

TEST_F(RunsTest, AGatherHasTheMembersTensorsOnly) {
  Report("g", Rows(Kind::kAllgather, 1, 2), MakeSet(1, {1, 2, 3, 4}));
  for (int64_t rows : {9, 1, 2, 3, 0, 9}) run_.add_first_dims(rows);
  ASSERT_TRUE(Add().ok());
  const RunSpec spec = Take();
  EXPECT_EQ(spec.bytes, 48u);
  EXPECT_EQ(spec.first_dims, (std::vector<int64_t>{0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(spec.blocks, (std::vector<NodeBlock>{{0, kAllNodes, 0, 8},
                                                 {1, kAllNodes, 8, 48}}));
}

TEST_F(RunsTest, GatherThatIsTooLargeIsAnError) {
  Report("g", Rows(Kind::kAllgather, 1024, 1024), sets_.all());
  run_.mutable_first_dims()->Resize(6, int64_t{1} << 60);
  EXPECT_EQ(Add().code(), absl::StatusCode::kInvalidArgument);
  run_.mutable_first_dims()->Truncate(0);
  run_.mutable_first_dims()->Resize(6, -1);
  EXPECT_FALSE(Add().ok());
  run_.mutable_first_dims()->Truncate(0);
  run_.mutable_first_dims()->Resize(5, 1);
  EXPECT_FALSE(Add().ok());
  run_.add_first_dims(1);
  EXPECT_TRUE(Add().ok());
}

TEST_F(RunsTest, AScatterSaysWhichNodeNeedsWhat) {
  const SharedSet set = MakeSet(1, {0, 2, 3, 5});
  // 7 rows of 8 bytes: 2, 2, 2 and 1.
  Report("a", Rows(Kind::kReducescatter, 7, 2), set);
  // 2 rows: one each for the first two.
  Report("b", Rows(Kind::kReducescatter, 2, 2), set);
  ASSERT_TRUE(Add().ok());
  const RunSpec spec = Take();
  EXPECT_TRUE(spec.reduces());
  EXPECT_EQ(spec.operations[1].offset, 64u);
  EXPECT_EQ(spec.bytes, 80u);
  EXPECT_EQ(spec.blocks, (std::vector<NodeBlock>{{0, 0, 0, 16},
                                                 {0, 1, 16, 48},
                                                 {0, 2, 48, 56},
                                                 {0, 0, 64, 72},
                                                 {0, 1, 72, 80}}));
}

TEST_F(RunsTest, AnAlltoallGoesFromNodeToNode) {
  // Rank 2 sends 1, 2 and 3 rows of 4 bytes to ranks 1, 2 and 4.
  Report("x", Rows(Kind::kAlltoall, 6, 1), MakeSet(1, {1, 2, 4}), {1, 2, 3});
  for (int64_t rows : {1, 0, 5, 1, 2, 3, 0, 2, 2}) run_.add_splits(rows);
  ASSERT_TRUE(Add().ok());
  const RunSpec spec = Take();
  EXPECT_EQ(spec.bytes, 64u);
  EXPECT_EQ(spec.splits, (std::vector<int64_t>{1, 0, 5, 1, 2, 3, 0, 2, 2}));
  // What other nodes do among themselves is left out.
  EXPECT_EQ(spec.blocks, (std::vector<NodeBlock>{
                             {1, 0, 24, 28}, {1, 2, 36, 48}, {2, 1, 48, 56}}));
}

TEST_F(RunsTest, AnAlltoallThatThisNodeHasNotReportedIsAnError) {
  Report("x", Rows(Kind::kAlltoall, 2, 1), MakeSet(1, {2, 4}), {1, 1});
  for (int64_t rows : {1, 2, 3, 4}) run_.add_splits(rows);
  EXPECT_EQ(Add().code(), absl::StatusCode::kInternal);
  run_.set_splits(1, 1);
  run_.set_splits(2, -3);
  EXPECT_FALSE(Add().ok());
  run_.set_splits(2, int64_t{1} << 60);
  EXPECT_FALSE(Add().ok());
  run_.mutable_splits()->Truncate(3);
  EXPECT_FALSE(Add().ok());
}

TEST_F(RunsTest, AlltoallsWaitForAMatrix) {
  Report("x", Rows(Kind::kAlltoall, 2, 1), MakeSet(1, {2, 4}), {1, 1});
  for (int64_t rows : {1, 1, 3, 4}) run_.add_splits(rows);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Add().ok());
  EXPECT_EQ(Take().matrix, 0u);
  const RunSpec second = Take();
  EXPECT_EQ(second.matrix, 1u);
  EXPECT_FALSE(queue_.Take().has_value());
  queue_.Free(second.record);
  EXPECT_EQ(Take().matrix, 1u);
  EXPECT_FALSE(queue_.Take().has_value());
}

// A record is reused only when all local ranks have left it.
TEST_F(RunsTest, WaitsForAFreeRecord) {
  RunQueue queue(6, 1, 1);
  Signature s;
  s.dims = kMaxDims;
  Report("b", s, sets_.all());
  for (uint64_t i = 1; i <= 3; ++i) {
    run_.set_run(i);
    ASSERT_TRUE(queue.Add(run_, &slots_).ok());
  }
  EXPECT_FALSE(queue.Add(run_, &slots_).ok());  // run 3 twice
  EXPECT_EQ(queue.Take()->generation, 1u);
  EXPECT_FALSE(queue.Take().has_value());
  queue.Free(0);
  EXPECT_EQ(queue.Take()->generation, 2u);
  EXPECT_FALSE(queue.Take().has_value());
}

}  // namespace
}  // namespace maypole::worker
