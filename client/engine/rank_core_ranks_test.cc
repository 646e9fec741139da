// Runs that ranks' own GPUs execute (RunSite::kRanks).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"
#include "common/board/gpu_place.h"

namespace maypole {
namespace {

class FakeRun : public RankRun {
 public:
  Status Poll(State* state) override {
    *state = ended      ? State::kEnded
             : enqueued ? State::kEnqueued
                        : State::kWaiting;
    return status;
  }

  bool enqueued = false;
  bool ended = false;
  Status status;
};

// A rank's GPU; records what it was asked to execute.
struct FakeGpu {
  struct Begun {
    RankPart part;
    std::vector<std::string> names;
    std::shared_ptr<FakeRun> run;
  };
  std::vector<Begun> begun;
};

class OnOwnGpu : public StagedTensor {
 public:
  explicit OnOwnGpu(FakeGpu* gpu) : gpu_(gpu) {}
  std::byte* GatherInto(uint64_t) override { return nullptr; }
  Status BringToHost(Operation*, bool* done) override {
    *done = false;
    return Status();
  }
  void ResultOnGpu(uint64_t offset) override {
    EXPECT_EQ(offset, 0u);
    reduced = true;
  }
  std::shared_ptr<RankRun> BeginOnRank(
      const RankPart& part, const std::vector<Operation*>& ops) override {
    if (gpu_ == nullptr) return nullptr;
    FakeGpu::Begun begun{part, {}, std::make_shared<FakeRun>()};
    for (const Operation* op : ops) begun.names.push_back(op->name);
    gpu_->begun.push_back(begun);
    return begun.run;
  }

  bool reduced = false;

 private:
  FakeGpu* const gpu_;
};

class RanksTest : public testing::Test {
 protected:
  // Rank r submits the operation with its tensor on its own GPU.
  Tensor Submit(uint32_t r, const std::string& name) {
    return Submit(r, Make(Kind::kAllreduce, name, {1, 2}, Op::kSum));
  }
  Tensor Submit(uint32_t r, Tensor t) {
    Operation& op = *t.op;
    op.set = w_.cores[r]->FindSet(0);
    op.signature.dtype = DType::kInt32;
    op.signature.dims = 1;
    op.signature.shape[0] = static_cast<int64_t>(t.input.size());
    op.gpu_place = PackGpuPlace({.number = 1, .gpu = 0, .offset = 0});
    op.staged = std::make_shared<OnOwnGpu>(is_client_[r] ? &gpus_[r] : nullptr);
    EXPECT_TRUE(w_.Start(r, t.op).ok());
    return t;
  }
  // An allgather of `rows` rows or, with splits, an alltoall.
  Tensor Gather(uint32_t r, size_t rows, uint64_t room,
                std::vector<int64_t> splits = {}) {
    Tensor t = Make(splits.empty() ? Kind::kAllgather : Kind::kAlltoall, "x",
                    std::vector<int32_t>(rows), Op::kSum);
    t.op->splits = std::move(splits);
    t.op->gpu_room = room;
    return Submit(r, std::move(t));
  }
  // Does what the executor does when all have submitted these operations.
  void Issue(const std::vector<const Tensor*>& operations) {
    const uint32_t record = issued_++;
    PlanHeader& plan = w_.board->plan(record);
    for (const Tensor* t : operations) {
      w_.board->plan_operations(record)[plan.operations++] = {
          t->op->slot, t->op->generation, plan.bytes};
      plan.bytes += 64;
    }
    plan.generation = 1;
    plan.site = RunSite::kRanks;
    plan.communicator = 33;
    const RunRef ref = w_.board->NegotiatedRef(record);
    w_.board->SetRunMembers(ref, 1, 3);
    EXPECT_NE(w_.board->PlaceTicket(ref, 1, 0), kNoPlace);
  }
  FakeRun& RunOf(uint32_t r, size_t i = 0) { return *gpus_[r].begun.at(i).run; }

  World w_{2};
  FakeGpu gpus_[2];
  bool is_client_[2] = {true, true};
  uint32_t issued_ = 0;
};

TEST_F(RanksTest, ARankEndsWhenItsPartIsOnItsStream) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  ASSERT_EQ(gpus_[0].begun.size(), 1u);
  EXPECT_EQ(gpus_[0].begun[0].part.communicator, 33u);
  EXPECT_FALSE(a.op->done.load() || b.op->done.load());
  RunOf(1).enqueued = true;
  w_.Settle();
  EXPECT_FALSE(a.op->done.load());
  ASSERT_TRUE(b.op->done.load());
  EXPECT_TRUE(b.op->status.ok());
  EXPECT_TRUE(b.op->ran_on_gpu);
  EXPECT_TRUE(static_cast<OnOwnGpu&>(*b.op->staged).reduced);
  RunOf(0).enqueued = true;
  w_.Settle();
  EXPECT_TRUE(a.op->done.load() && a.op->status.ok());
  for (uint32_t r = 0; r < 2; ++r) {
    // The executor may use the record again.
    EXPECT_EQ(
        CountAt(
            w_.board->progress(w_.board->NegotiatedRef(0), r).consumed.load(),
            1),
        UINT32_MAX);
    EXPECT_EQ(w_.cores[r]->outstanding(), 0u);
  }
}

TEST_F(RanksTest, TheRanksOfANodeKnowEachOthersSizes) {
  const Tensor a = Gather(0, 3, 20), b = Gather(1, 2, 20);
  w_.Settle();
  Issue({&a});
  w_.Settle();
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_EQ(gpus_[r].begun.size(), 1u);
    const RankPart& part = gpus_[r].begun[0].part;
    EXPECT_EQ(part.rows, (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(part.position, r);
    RunOf(r).enqueued = true;
  }
  w_.Settle();
  for (const Tensor* t : {&a, &b}) {
    ASSERT_TRUE(t->op->done.load());
    EXPECT_TRUE(static_cast<OnOwnGpu&>(*t->op->staged).reduced);
    EXPECT_EQ(t->op->gathered_rows, 5);
    EXPECT_EQ(t->op->gathered_bytes, 20u);
    EXPECT_EQ(t->op->gathered, nullptr);
  }
}

TEST_F(RanksTest, TheRanksOfANodeKnowEachOthersSplits) {
  const Tensor a = Gather(0, 3, 24, {1, 2}), b = Gather(1, 7, 24, {3, 4});
  w_.Settle();
  const std::vector<int64_t> splits = {1, 2, 3, 4};
  Issue({&a});
  w_.Settle();
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_EQ(gpus_[r].begun.size(), 1u);
    EXPECT_EQ(gpus_[r].begun[0].part.rows, splits);
    RunOf(r).enqueued = true;
  }
  w_.Settle();
  EXPECT_EQ(a.op->received, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(b.op->received, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(b.op->gathered_bytes, 24u);
}

TEST_F(RanksTest, AResultWithoutRoomIsNotWritten) {
  const Tensor a = Gather(0, 3, 20), b = Gather(1, 2, 16);
  w_.Settle();
  Issue({&a});
  w_.Settle();
  EXPECT_EQ(gpus_[0].begun.size(), 1u);
  EXPECT_TRUE(gpus_[1].begun.empty());
  EXPECT_NE(w_.shells[1]->broken.message().find(
                "its result of 20 bytes has room for 16 only"),
            std::string::npos)
      << w_.shells[1]->broken.message();
}

TEST_F(RanksTest, RunsBeginInTheOrderOfTicketsAndFusedOnesOnce) {
  const Tensor ax = Submit(0, "x"), ay = Submit(0, "y"), az = Submit(0, "z");
  const Tensor bz = Submit(1, "z"), by = Submit(1, "y"), bx = Submit(1, "x");
  w_.Settle();
  Issue({&az, &ax});
  Issue({&ay});
  w_.Settle();
  for (const FakeGpu& gpu : gpus_) {
    ASSERT_EQ(gpu.begun.size(), 2u);
    EXPECT_EQ(gpu.begun[0].names, (std::vector<std::string>{"z", "x"}));
    EXPECT_EQ(gpu.begun[1].names, (std::vector<std::string>{"y"}));
  }
  RunOf(0, 1).enqueued = RunOf(0, 0).enqueued = true;
  w_.Settle();
  for (const Tensor* t : {&ax, &ay, &az}) EXPECT_TRUE(t->op->done.load());
  for (const Tensor* t : {&bx, &by, &bz}) EXPECT_FALSE(t->op->done.load());
}

TEST_F(RanksTest, AnAbortWaitsUntilTheGpuHasStopped) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  w_.board->Abort(Code::kAborted, "rank 1 was lost");
  RunOf(1).status = Status(Code::kAborted, "the epoch is over");
  w_.Settle();
  EXPECT_TRUE(w_.shells[1]->broken.ok());
  EXPECT_FALSE(a.op->done.load());
  ASSERT_TRUE(b.op->done.load());
  EXPECT_EQ(b.op->status.message(), "allreduce 'x': rank 1 was lost");
  RunOf(0).status = Status(Code::kAborted, "the epoch is over");
  w_.Settle();
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(a.op->status.message(), "allreduce 'x': rank 1 was lost");
}

TEST_F(RanksTest, NothingBeginsAfterAnAbort) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.board->Abort(Code::kAborted, "rank 1 was lost");
  w_.Settle();
  EXPECT_TRUE(gpus_[0].begun.empty() && gpus_[1].begun.empty());
  EXPECT_EQ(a.op->status.message(), "allreduce 'x': rank 1 was lost");
  EXPECT_EQ(b.op->status.message(), "allreduce 'x': rank 1 was lost");
}

// NCCL reports a lost peer; only others know the cause.
TEST_F(RanksTest, ALostPeerWaitsForItsCause) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  RunOf(0).status = Status(Code::kUnavailable, "remote error");
  w_.Settle();
  EXPECT_FALSE(a.op->done.load());
  EXPECT_TRUE(w_.shells[0]->broken.ok());
  w_.shells[0]->now += 5'000'000'000;
  w_.Settle();
  EXPECT_EQ(w_.shells[0]->broken.message(), "allreduce 'x': remote error");
}

TEST_F(RanksTest, OtherErrorsEndTheRanksPartAtOnce) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  RunOf(0).status = Status(Code::kInternal, "NCCL error 3");
  w_.Settle();
  EXPECT_EQ(w_.shells[0]->broken.message(), "allreduce 'x': NCCL error 3");
  EXPECT_TRUE(w_.shells[1]->broken.ok());
}

TEST_F(RanksTest, ARunThatFailsOnTheGpuAfterItsEndForTheUserEndsTheEpoch) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  for (uint32_t r = 0; r < 2; ++r) RunOf(r).enqueued = true;
  w_.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_TRUE(w_.cores[0]->has_enqueued() && w_.cores[1]->has_enqueued());
  RunOf(1).ended = true;
  RunOf(0).status = Status(Code::kInternal, "NCCL error 3");
  w_.Settle();
  EXPECT_EQ(w_.shells[0]->broken.message(), "allreduce 'x': NCCL error 3");
  EXPECT_TRUE(w_.shells[1]->broken.ok());
  EXPECT_FALSE(w_.cores[0]->has_enqueued() || w_.cores[1]->has_enqueued());
}

TEST_F(RanksTest, ALostPeerOfARunOnTheGpuWaitsForItsCauseToo) {
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  RunOf(0).enqueued = true;
  w_.Settle();
  RunOf(0).status = Status(Code::kUnavailable, "remote error");
  w_.Settle();
  EXPECT_TRUE(w_.shells[0]->broken.ok());
  w_.shells[0]->now += 5'000'000'000;
  w_.Settle();
  EXPECT_EQ(w_.shells[0]->broken.message(), "allreduce 'x': remote error");
}

TEST_F(RanksTest, AnAbortLeavesRunsThatHaveEndedWell) {
  const Tensor ax = Submit(0, "x"), ay = Submit(0, "y");
  const Tensor bx = Submit(1, "x"), by = Submit(1, "y");
  w_.Settle();
  Issue({&ax});
  Issue({&ay});
  w_.Settle();
  RunOf(0, 1).ended = true;
  w_.Settle();
  EXPECT_FALSE(ay.op->done.load());  // they end in order
  w_.board->Abort(Code::kAborted, "rank 1 was lost");
  RunOf(0, 0).status = Status(Code::kAborted, "the epoch is over");
  w_.Settle();
  EXPECT_FALSE(ax.op->status.ok());
  ASSERT_TRUE(ay.op->done.load());
  EXPECT_TRUE(ay.op->status.ok());
}

TEST_F(RanksTest, ARankThatCallsNoNcclBreaks) {
  is_client_[1] = false;
  const Tensor a = Submit(0, "x"), b = Submit(1, "x");
  w_.Settle();
  Issue({&a});
  w_.Settle();
  EXPECT_NE(w_.shells[1]->broken.message().find("but this rank does not"),
            std::string::npos);
}

}  // namespace
}  // namespace maypole
