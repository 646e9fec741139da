// Ranks that call NCCL themselves: kinds other than allreduce.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "client/testing/staging_ranks_testing.h"

namespace maypole {
namespace {

constexpr uint64_t kBytes = kElements * 4;

class StagingRanksKindsTest : public StagingRanksTest {
 protected:
  static Part Gather(CUdeviceptr input, size_t elements,
                     Kind kind = Kind::kAllgather) {
    return {.kind = kind,
            .input = input,
            .elements = elements,
            .input_bytes = elements * 4,
            .output_bytes = 0};
  }
  // Begins both ranks' parts, and waits until both are on their streams.
  void Run(const std::shared_ptr<Operation> (&ops)[2],
           const std::vector<int64_t>& rows = {}) {
    std::shared_ptr<RankRun> runs[2];
    for (uint32_t i = 0; i < 2; ++i) runs[i] = Begin(ops[i], i, rows);
    if (!connected_) Connect();
    connected_ = true;
    for (int i = 0; i < 2; ++i) Finish(ops[i], *runs[i]);
  }
  static void SetGathered(Operation& op, size_t elements) {
    op.SetGathered(elements * 4, static_cast<int64_t>(elements));
  }
  Values Fetch(Rank& r, const Operation& op, size_t elements,
               CopyOutReturns returns = CopyOutReturns::kWhenDone) {
    const CUdeviceptr to = OnDevice(r, Values(elements + 1, -1.0f));
    const Status s = r.staging->CopyOut(op, r.stream, to, returns);
    EXPECT_TRUE(s.ok()) << s.message();
    const Values got = Read(r, to, elements + 1);
    EXPECT_EQ(got.back(), -1.0f);
    return {got.begin(), got.end() - 1};
  }
  static void BringToHost(Operation& op) {
    bool done = false;
    const auto until = steady_clock::now() + seconds(20);
    while (!done && steady_clock::now() < until) {
      const Status s = op.staged->BringToHost(&op, &done);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    ASSERT_TRUE(done);
  }

  bool connected_ = false;
};

TEST_F(StagingRanksKindsTest, ABroadcastGoesToTheUsersOutput) {
  const Values in(kElements, 1.5f), before(kElements, 9.0f);
  const CUdeviceptr input = OnDevice(ranks_[1], in);
  CUdeviceptr output[2];
  std::shared_ptr<Operation> ops[2];
  for (int i = 0; i < 2; ++i) {
    output[i] = OnDevice(ranks_[i], before);
    Part part{.kind = Kind::kBroadcast, .output = output[i]};
    if (i == 1) part.input = input;  // the root
    if (i == 0) part.input_bytes = 0;
    ops[i] = Submit(ranks_[i], part);
    ops[i]->signature.root = 1;
  }
  Run(ops);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        ranks_[i]
            .staging
            ->CopyOut(*ops[i], ranks_[i].stream, 0, CopyOutReturns::kWhenDone)
            .ok());
    EXPECT_EQ(Read(ranks_[i], output[i]), in);
  }
  EXPECT_EQ(Read(ranks_[1], input), in);
}

TEST_F(StagingRanksKindsTest, AReceiverOfABroadcastOnTheHostHasNoInput) {
  Rank& r = ranks_[0];
  const CUdeviceptr output = OnDevice(r, Values(kElements, 9.0f));
  const auto op =
      Submit(r, {.kind = Kind::kBroadcast, .output = output, .input_bytes = 0});
  BringToHost(*op);
  const Values values(kElements, 5.0f);
  std::memcpy(op->output, values.data(), kBytes);
  op->done = true;
  ASSERT_TRUE(
      r.staging->CopyOut(*op, r.stream, 0, CopyOutReturns::kWhenDone).ok());
  EXPECT_EQ(Read(r, output), values);
}

TEST_F(StagingRanksKindsTest, AReducescatterWritesEachRanksPart) {
  // The first rank gets 10,001 rows, the other one 10,000.
  constexpr size_t kCount = kElements + 1;
  const size_t parts[] = {kCount / 2 + 1, kCount / 2};
  Values in(kCount);
  for (size_t i = 0; i < kCount; ++i) in[i] = static_cast<float>(i);
  CUdeviceptr output[2];
  std::shared_ptr<Operation> ops[2];
  for (int i = 0; i < 2; ++i) {
    output[i] = OnDevice(ranks_[i], Values(parts[i] + 1, -1.0f));
    ops[i] = Submit(ranks_[i], {.kind = Kind::kReducescatter,
                                .input = OnDevice(ranks_[i], in),
                                .output = output[i],
                                .elements = kCount,
                                .input_bytes = kCount * 4,
                                .output_bytes = parts[i] * 4});
  }
  Run(ops);
  size_t at = 0;
  for (int i = 0; i < 2; ++i) {
    Rank& r = ranks_[i];
    ASSERT_TRUE(
        r.staging->CopyOut(*ops[i], r.stream, 0, CopyOutReturns::kWhenDone)
            .ok());
    Values expected;
    for (size_t j = 0; j < parts[i]; ++j) {
      expected.push_back(2.0f * static_cast<float>(at++));
    }
    expected.push_back(-1.0f);
    EXPECT_EQ(Read(r, output[i], parts[i] + 1), expected);
    EXPECT_EQ(Read(r, r.tensors[1], kCount), in);
  }
}

// NCCL's result in place lies elsewhere.
TEST_F(StagingRanksKindsTest, AReducescatterOverItsInputIsForTheHost) {
  Rank& r = ranks_[0];
  const CUdeviceptr input = OnDevice(r, Values(kElements, 1.0f));
  Submit(r, input, input);  // the GPU is announced
  Part part{.kind = Kind::kReducescatter,
            .input = input,
            .output = input,
            .output_bytes = kBytes / 2};
  EXPECT_EQ(CopyIn(r, part)->gpu_place, kNoGpuPlace);
  part.output = input + kBytes / 2;
  EXPECT_EQ(CopyIn(r, part)->gpu_place, kNoGpuPlace);
  part.output = OnDevice(r, Values(kElements / 2));
  EXPECT_NE(CopyIn(r, part)->gpu_place, kNoGpuPlace);
}

TEST_F(StagingRanksKindsTest, AGathersResultIsCopiedToTheUsersMemory) {
  for (const CopyOutReturns returns :
       {CopyOutReturns::kWhenDone, CopyOutReturns::kWhenEnqueued}) {
    std::shared_ptr<Operation> ops[2];
    for (int i = 0; i < 2; ++i) {
      const Values in(kElements, static_cast<float>(i + 1));
      ops[i] = Submit(ranks_[i], Gather(OnDevice(ranks_[i], in), kElements));
      EXPECT_GE(ops[i]->gpu_room, 2 * kBytes);
      SetGathered(*ops[i], 2 * kElements);
    }
    Run(ops, {kElements, kElements});
    Values expected(kElements, 1.0f);
    expected.resize(2 * kElements, 2.0f);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Fetch(ranks_[i], *ops[i], 2 * kElements, returns), expected);
    }
  }
}

// The first rank sends everything; the other one knows the size from its last
// result.
TEST_F(StagingRanksKindsTest, AnAlltoallsRanksKnowTheLastResult) {
  Rank& receiver = ranks_[1];
  const CUdeviceptr some = OnDevice(receiver, Values(kElements, 7.0f));
  auto last = Submit(receiver, Gather(some, kElements, Kind::kAlltoall));
  BringToHost(*last);
  ASSERT_TRUE(last->MakeGathered(2 * kBytes, 2 * kElements));
  last->done = true;
  Fetch(receiver, *last, 2 * kElements);

  Values in(2 * kElements, 3.0f);
  in.front() = 4.0f;
  const std::shared_ptr<Operation> ops[] = {
      Submit(ranks_[0],
             Gather(OnDevice(ranks_[0], in), 2 * kElements, Kind::kAlltoall)),
      CopyIn(receiver, Gather(0, 0, Kind::kAlltoall))};
  ops[1]->generation = ops[0]->generation;
  EXPECT_NE(ops[1]->gpu_place, kNoGpuPlace);
  EXPECT_EQ(ops[1]->gpu_room, 2 * kBytes + kBytes / 2);
  SetGathered(*ops[0], 0);
  SetGathered(*ops[1], 2 * kElements);
  Run(ops, {0, 2 * kElements, 0, 0});
  // Then the sender's input is free.
  ASSERT_TRUE(
      ranks_[0]
          .staging
          ->CopyOut(*ops[0], ranks_[0].stream, 0, CopyOutReturns::kWhenDone)
          .ok());
  EXPECT_EQ(Fetch(receiver, *ops[1], 2 * kElements), in);
}

TEST_F(StagingRanksKindsTest, WithoutRoomTheHostGathers) {
  Rank& r = ranks_[0];
  const CUdeviceptr input = OnDevice(r, Values(kElements, 1.0f));
  // The GPU has 256 MiB, of which an eighth may be used.
  const auto fits = Submit(r, Gather(input, kElements));
  EXPECT_NE(fits->gpu_place, kNoGpuPlace);
  constexpr size_t kMany = (16 << 20) / 4 + 1;
  const CUdeviceptr large = OnDevice(r, Values(kMany, 2.0f));
  const auto op = CopyIn(r, Gather(large, kMany));
  EXPECT_EQ(op->gpu_place, kNoGpuPlace);
}

// The user has released the operation, but NCCL writes the result.
TEST_F(StagingRanksKindsTest, RoomIsNotUsedAgainBeforeTheRunHasEnded) {
  Rank& r = ranks_[0];
  const CUdeviceptr input = OnDevice(r, Values(kElements, 1.0f));
  auto op = Submit(r, Gather(input, kElements));
  const auto run = Begin(op, 0, {kElements, kElements});  // alone
  op.reset();
  std::vector<std::shared_ptr<Operation>> others;
  // As many as the eighth of the GPU has room for, but one.
  constexpr size_t kRooms = (32 << 20) / (2 * kBytes + 96);
  static_assert(kRooms > 2);
  size_t placed = 0;
  for (size_t i = 0; i < kRooms + 1; ++i) {
    others.push_back(CopyIn(r, Gather(input, kElements)));
    placed += others.back()->gpu_place != kNoGpuPlace;
  }
  EXPECT_LT(placed, kRooms);
  r.communicator.EndEpoch(Status(Code::kAborted, "rank 1 was lost"));
  auto state = RankRun::State::kWaiting;
  const auto until = steady_clock::now() + seconds(20);
  while (run->Poll(&state).ok() && steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_NE(CopyIn(r, Gather(input, kElements))->gpu_place, kNoGpuPlace);
}

}  // namespace
}  // namespace maypole
