// Ranks that call NCCL themselves: allreduce, the host, and the epoch's end.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "client/testing/staging_ranks_testing.h"

namespace maypole {
namespace {

TEST_F(StagingRanksTest, NcclReadsAndWritesTheUsersTensors) {
  for (const CopyOutReturns returns :
       {CopyOutReturns::kWhenDone, CopyOutReturns::kWhenEnqueued}) {
    const Values in[] = {Values(kElements, 1.5f), Values(kElements, 2.0f)};
    CUdeviceptr input[2], output[2];
    std::shared_ptr<Operation> ops[2];
    std::shared_ptr<RankRun> runs[2];
    for (int i = 0; i < 2; ++i) {
      input[i] = OnDevice(ranks_[i], in[i]);
      output[i] = i == 0 ? OnDevice(ranks_[i], in[0]) : input[i];
      ops[i] = Submit(ranks_[i], input[i], output[i]);
    }
    for (int i = 0; i < 2; ++i) runs[i] = Begin(ops[i]);
    if (returns == CopyOutReturns::kWhenDone) {
      for (Rank& r : ranks_) EXPECT_EQ(r.communicator.expected, 1);
      Connect();  // after the runs have begun
    }
    for (int i = 0; i < 2; ++i) Finish(ops[i], *runs[i]);
    for (int i = 0; i < 2; ++i) {
      Rank& r = ranks_[i];
      const Status s = r.staging->CopyOut(*ops[i], r.stream, 0, returns);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(Read(r, output[i]), Values(kElements, 3.5f));
      EXPECT_EQ(r.communicator.expected, 0);
    }
    EXPECT_EQ(Read(ranks_[0], input[0]), in[0]);
  }
}

TEST_F(StagingRanksTest, TheHostGetsTheInputWhenItIsWritten) {
  Rank& r = ranks_[0];
  const Values in(kElements, 1.5f);
  const CUdeviceptr input = OnDevice(r, in);
  const auto op = Submit(r, input, input);
  bool done = false;
  const auto until = steady_clock::now() + seconds(20);
  while (!done && steady_clock::now() < until) {
    ASSERT_TRUE(op->staged->BringToHost(op.get(), &done).ok());
  }
  ASSERT_TRUE(done);
  auto* const values = reinterpret_cast<float*>(op->output);
  EXPECT_EQ(Values(values, values + kElements), in);
  std::fill_n(values, kElements, 7.0f);
  op->done = true;
  ASSERT_TRUE(
      r.staging->CopyOut(*op, r.stream, 0, CopyOutReturns::kWhenDone).ok());
  EXPECT_EQ(Read(r, input), Values(kElements, 7.0f));
}

// A rank's kernel is on the stream, but the other rank never begins.
TEST_F(StagingRanksTest, TheEndOfTheEpochEndsWhatWaitsForAnotherRank) {
  std::shared_ptr<Operation> ops[2];
  std::shared_ptr<RankRun> runs[2];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) {
      const CUdeviceptr tensor = OnDevice(ranks_[i], Values(kElements, 1.0f));
      ops[i] = Submit(ranks_[i], tensor, tensor);
    }
    if (round == 1) break;
    for (int i = 0; i < 2; ++i) runs[i] = Begin(ops[i]);
    Connect();
    for (int i = 0; i < 2; ++i) Finish(ops[i], *runs[i]);
    for (int i = 0; i < 2; ++i) {
      Rank& r = ranks_[i];
      ASSERT_TRUE(
          r.staging->CopyOut(*ops[i], r.stream, 0, CopyOutReturns::kWhenDone)
              .ok());
    }
  }
  Rank& r = ranks_[0];
  Finish(ops[0], *Begin(ops[0]));
  std::thread ends([&r] {
    r.communicator.EndEpoch(Status(Code::kAborted, "rank 1 was lost"));
  });
  const Status s =
      r.staging->CopyOut(*ops[0], r.stream, 0, CopyOutReturns::kWhenDone);
  ends.join();
  EXPECT_EQ(s.message(), "allreduce 'x': rank 1 was lost");
  EXPECT_EQ(
      r.staging->CopyOut(*ops[0], r.stream, 0, CopyOutReturns::kWhenEnqueued)
          .message(),
      "allreduce 'x': rank 1 was lost");
}

// MAYPOLE_GPU_SITE=auto.
TEST_F(StagingRanksTest, WhatTheExecutorRefusesIsLeftToIt) {
  Rank& r = ranks_[0];
  r.staging->Leave();
  ASSERT_TRUE(Staging::Open(&r.communicator, nullptr, {.chooses_site = true},
                            &r.staging)
                  .ok());
  r.communicator.refuses = true;
  const CUdeviceptr input = OnDevice(r, Values(kElements, 1.0f));
  CopyIn(r, input, input);
  EXPECT_TRUE(r.communicator.requests.empty());  // others' GPUs are not known
  r.communicator.use = Communicator::GpuUse::kOwn;
  CopyIn(r, input, input);
  ASSERT_EQ(r.communicator.requests.size(), 1u);
  CopyIn(r, input, input);
  ASSERT_EQ(r.communicator.requests.size(), 2u);
  const auto sharing = [&](size_t i) {
    EXPECT_EQ(r.communicator.requests[i].number, i + 1);
    return static_cast<session::GpuSharing>(r.communicator.requests[i].sharing);
  };
  EXPECT_EQ(sharing(0), session::GpuSharing::kOwn);
  EXPECT_EQ(sharing(1), session::GpuSharing::kDescriptor);
}

TEST_F(StagingRanksTest, WithoutNcclTheHostHasTheTensors) {
  setenv("MAYPOLE_NCCL_LIBRARY", "none", 1);
  const CUdeviceptr input = OnDevice(ranks_[0], Values(kElements, 1.0f));
  EXPECT_EQ(CopyIn(ranks_[0], input, input)->gpu_place, kNoGpuPlace);
  EXPECT_EQ(CopyIn(ranks_[0], input, input)->gpu_place, kNoGpuPlace);
}

}  // namespace
}  // namespace maypole
