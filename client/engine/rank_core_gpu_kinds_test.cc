// Operations of all kinds whose tensors lie in GPU memory that ranks share with
// the executor.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/on_gpu_testing.h"

namespace maypole {
namespace {

struct Ranks {
  explicit Ranks(World* world) : w(*world) {}

  void Add(Kind kind, Values v, std::vector<int64_t> splits = {}) {
    const auto r = static_cast<uint32_t>(staged.size());
    tensors.push_back(
        std::make_unique<Tensor>(Make(kind, "x", std::move(v), Op::kSum)));
    Operation& op = *tensors.back()->op;
    op.splits = std::move(splits);
    if (kind == Kind::kBroadcast) op.signature.root = 0;
    if (kind == Kind::kReducescatter) {
      op.output = reinterpret_cast<std::byte*>(&scattered);
    }
    staged.push_back(SubmitOnGpu(w, r, *tensors.back()));
  }
  const Operation& op(size_t r) const { return *tensors[r]->op; }
  // What a run's ticket and record need.
  uint32_t slot() const { return op(0).slot; }
  uint32_t generation() const { return op(0).generation; }

  // The executor queues a ticket without a commit.
  void SendToHost() {
    EXPECT_NE(w.board->PlaceTicket(slot(), generation(), 0), kNoPlace);
  }
  // The executor issues the record of a run that GPUs have executed.
  PlanHeader& WriteRecord() {
    PlanHeader& plan = w.board->plan(0);
    plan.generation = plan.operations = 1;
    plan.bytes = 0;
    plan.site = RunSite::kExecutors;
    w.board->plan_operations(0)[0] = {slot(), generation(), 0};
    return plan;
  }
  void IssueRecord() {
    const RunRef ref = w.board->NegotiatedRef(0);
    w.board->SetRunMembers(ref, 1, w.board->Members(slot()));
    EXPECT_NE(w.board->PlaceTicket(ref, 1, 0), kNoPlace);
  }
  void ExpectResultsOnGpu() {
    for (size_t r = 0; r < staged.size(); ++r) {
      ASSERT_TRUE(op(r).done.load());
      EXPECT_TRUE(op(r).status.ok()) << op(r).status.message();
      EXPECT_TRUE(op(r).ran_on_gpu);
      EXPECT_TRUE(staged[r]->result_on_gpu);
      EXPECT_EQ(staged[r]->asked, 0);
      EXPECT_EQ(w.cores[r]->outstanding(), 0u);
    }
  }
  void ExpectResultsOnHost() {
    for (size_t r = 0; r < staged.size(); ++r) {
      ASSERT_TRUE(op(r).done.load());
      EXPECT_TRUE(op(r).status.ok()) << op(r).status.message();
      EXPECT_FALSE(op(r).ran_on_gpu);
      EXPECT_FALSE(staged[r]->result_on_gpu);
    }
  }

  World& w;
  int32_t scattered = 0;
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<std::shared_ptr<OnGpu>> staged;
};

TEST(RankCoreGpuKindsTest, ABroadcastsResultIsAtItsPlace) {
  World w(3);
  Ranks ranks(&w);
  for (int r = 0; r < 3; ++r) ranks.Add(Kind::kBroadcast, Values(200, r));
  w.Settle();
  EXPECT_TRUE(IsReady(w, *ranks.tensors[0]));
  Commit(w, *ranks.tensors[0]);
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.staged[2]->result_at, 0u);
}

TEST(RankCoreGpuKindsTest, AReducescattersResultIsTheRanksPart) {
  World w(3);
  Ranks ranks(&w);
  for (int r = 0; r < 3; ++r) ranks.Add(Kind::kReducescatter, Values(10, r));
  w.Settle();
  Commit(w, *ranks.tensors[0]);
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.staged[0]->result_at, 0u);
  EXPECT_EQ(ranks.staged[1]->result_at, 16u);  // rank 0 has 4 elements
  EXPECT_EQ(ranks.staged[2]->result_at, 28u);
}

TEST(RankCoreGpuKindsTest, AGathersResultIsBehindTheTensor) {
  World w(2);
  Ranks ranks(&w);
  ranks.Add(Kind::kAllgather, Values(65, 1));
  ranks.Add(Kind::kAllgather, {});
  w.Settle();
  Commit(w, *ranks.tensors[0]);
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.staged[0]->result_at, 512u);
  EXPECT_EQ(ranks.staged[1]->result_at, 0u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(ranks.op(r).gathered_rows, 65);
    EXPECT_EQ(ranks.op(r).gathered_bytes, 260u);
    EXPECT_EQ(ranks.op(r).gathered, nullptr);
  }
}

TEST(RankCoreGpuKindsTest, AnAlltoallTellsWhatEachHasSent) {
  World w(2);
  Ranks ranks(&w);
  ranks.Add(Kind::kAlltoall, Values(5, 1), {2, 3});
  ranks.Add(Kind::kAlltoall, Values(4, 2), {0, 4});
  w.Settle();
  Commit(w, *ranks.tensors[0]);
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.op(0).received, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(ranks.op(1).received, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(ranks.op(1).gathered_bytes, 28u);
}

TEST(RankCoreGpuKindsTest, ATicketWithoutACommitMeansTheHost) {
  World w(3);
  Ranks ranks(&w);
  for (int r = 0; r < 3; ++r) {
    ranks.Add(Kind::kAllgather, Values(static_cast<size_t>(r), r));
  }
  w.Settle();
  ranks.SendToHost();
  for (int i = 0; i < 4; ++i) w.Settle();
  ranks.ExpectResultsOnHost();
  for (const auto& t : ranks.tensors) EXPECT_EQ(t->Result(), (Values{1, 2, 2}));
}

// On the host, one rank can commit before another has seen the ticket.
TEST(RankCoreGpuKindsTest, ACommitOfARankDoesNotMeanTheGpu) {
  World w(3);
  Ranks ranks(&w);
  for (int r = 0; r < 3; ++r) ranks.Add(Kind::kBroadcast, Values(20, r));
  w.Settle();
  ranks.SendToHost();
  for (int i = 0; i < 1000; ++i) {  // rank 2 does not get a turn
    w.cores[0]->Step();
    w.cores[1]->Step();
  }
  EXPECT_TRUE(ranks.op(1).done.load());
  EXPECT_FALSE(ranks.op(2).done.load());
  for (int i = 0; i < 4; ++i) w.Settle();
  ranks.ExpectResultsOnHost();
  for (const auto& t : ranks.tensors) EXPECT_EQ(t->output, Values(20, 0));
}

TEST(RankCoreGpuKindsTest, OverSeveralNodesTheRecordTellsTheSizes) {
  World w(2);
  w.negotiated = true;
  Ranks ranks(&w);
  ranks.Add(Kind::kAllgather, Values(3, 1));
  ranks.Add(Kind::kAllgather, Values(2, 1));
  w.Settle();
  ranks.WriteRecord();
  w.board->plan_first_dims(0)[0] = 30;
  w.board->plan_first_dims(0)[1] = 4;
  ranks.IssueRecord();
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.op(0).gathered_rows, 34);
  EXPECT_EQ(ranks.op(1).gathered_bytes, 136u);
  for (uint32_t r = 0; r < 2; ++r) {  // the record is free
    EXPECT_EQ(
        CountAt(w.board->progress(w.board->NegotiatedRef(0), r).consumed.load(),
                1),
        UINT32_MAX);
  }
}

TEST(RankCoreGpuKindsTest, OverSeveralNodesTheRecordTellsTheSplits) {
  World w(2);
  w.negotiated = true;
  Ranks ranks(&w);
  ranks.Add(Kind::kAlltoall, Values(3, 1), {1, 2});
  ranks.Add(Kind::kAlltoall, Values(3, 1), {3, 0});
  w.Settle();
  ranks.WriteRecord().matrix = 1;
  const std::vector<int64_t> splits = {1, 2, 3, 0};
  std::copy(splits.begin(), splits.end(), w.board->matrix(1));
  ranks.IssueRecord();
  w.Settle();
  ranks.ExpectResultsOnGpu();
  EXPECT_EQ(ranks.op(0).received, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ranks.op(1).received, (std::vector<int64_t>{2, 0}));
}

// The GPUs have executed the operation, but the executor dies before it queues
// the ticket.
TEST(RankCoreGpuKindsTest, AnAbortBeforeTheRecordsTicketEndsItByName) {
  World w(2);
  w.negotiated = true;
  Ranks ranks(&w);
  ranks.Add(Kind::kAllgather, Values(3, 1));
  ranks.Add(Kind::kAllgather, Values(2, 1));
  w.Settle();
  ranks.WriteRecord();
  w.board->Abort(Code::kAborted, "the executor died");
  w.Settle();
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(ranks.op(r).done.load());
    EXPECT_EQ(ranks.op(r).status.message(), "allgather 'x': the executor died");
  }
}

// One rank has taken its result, so the other one also gets it.
TEST(RankCoreGpuKindsTest, AnAbortAfterTheRecordsTicketDelivers) {
  World w(2);
  w.negotiated = true;
  Ranks ranks(&w);
  ranks.Add(Kind::kAllgather, Values(3, 1));
  ranks.Add(Kind::kAllgather, Values(2, 1));
  w.Settle();
  ranks.WriteRecord();
  w.board->plan_first_dims(0)[0] = 3;
  w.board->plan_first_dims(0)[1] = 2;
  ranks.IssueRecord();
  while (!ranks.op(0).done.load()) w.cores[0]->Step();
  w.board->Abort(Code::kAborted, "the executor died");
  w.Settle();
  ranks.ExpectResultsOnGpu();
}

}  // namespace
}  // namespace maypole
