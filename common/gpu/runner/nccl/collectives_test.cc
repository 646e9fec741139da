// Runs over two GPUs of one node. The environment's seeds make the GPUs' work
// and NCCL's calls late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "common/gpu/runner/gpu_queue.h"
#include "common/gpu/runner/testing/collective_fixture.h"
#include "common/limits.h"

namespace maypole {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CollectivesTest : public CollectiveFixture {
 protected:
  // Writes values to the tensors at `place`, and returns the result's bytes.
  Bytes WriteInputs(const Case& c, uint32_t place) {
    std::vector<std::vector<Bytes>> inputs(kGpus);
    for (uint32_t local = 0; local < ranks(); ++local) {
      const auto gpu = static_cast<size_t>(memory(local).device);
      inputs[gpu].push_back(
          SomeValues(c.dtype, c.elements, 100 * place + local));
      Write(local, place, inputs[gpu].back());
    }
    return OnCpu(c, inputs);
  }
  void ExpectResult(const Bytes& wanted, uint32_t place) {
    for (uint32_t local = 0; local < ranks(); ++local) {
      EXPECT_EQ(Read(local, place, wanted.size()), wanted)
          << "place " << place << " of local rank " << local;
    }
  }
  std::string Refusal(const GpuOperation& operation, uint32_t number = 1) {
    runner().Run(RunOf(number, operation));
    const Status s = Ended(operation.slot);
    EXPECT_FALSE(s.ok());
    return std::string(s.message());
  }
};

// --- Results -----------------------------------------------------------------

class Results : public CollectivesTest,
                public testing::WithParamInterface<uint32_t> {};

TEST_P(Results, AreThoseOfTheCpu) {
  OpenRanks(/*per_gpu=*/GetParam());
  Connect(1);
  std::vector<Bytes> wanted;
  for (uint32_t i = 0; i < kCases.size(); ++i) {
    wanted.push_back(WriteInputs(kCases[i], i));
    runner().Run(RunOf(1, OperationOf(kCases[i], i, i)));
  }
  for (uint32_t i = 0; i < kCases.size(); ++i) {
    const Status s = Ended(i);
    ASSERT_TRUE(s.ok()) << s.message();
    ExpectResult(wanted[i], i);
  }
  std::vector<uint32_t> slots(kCases.size());
  std::iota(slots.begin(), slots.end(), 0);
  EXPECT_EQ(EndedSlots(), slots);
}

TEST_P(Results, OfSeveralOperationsInARun) {
  OpenRanks(/*per_gpu=*/GetParam());
  Connect(1);
  std::vector<Bytes> wanted;
  GpuRun run = {.communicator = 1};
  for (uint32_t i = 0; i < kCases.size(); ++i) {
    wanted.push_back(WriteInputs(kCases[i], i));
    run.operations.push_back(OperationOf(kCases[i], i, i));
  }
  runner().Run(run);
  const Status s = Ended(0);
  ASSERT_TRUE(s.ok()) << s.message();
  for (uint32_t i = 0; i < kCases.size(); ++i) ExpectResult(wanted[i], i);
  EXPECT_THAT(EndedSlots(), ElementsAre(0));
}

INSTANTIATE_TEST_SUITE_P(RanksOfAGpu, Results, testing::Values(1u, 2u));

TEST_F(CollectivesTest, Broadcasts) {
  OpenRanks(/*per_gpu=*/2);
  Connect(1);
  for (uint32_t root = 0; root < ranks(); ++root) {
    for (uint32_t local = 0; local < ranks(); ++local) {
      Write(local, 0, SomeValues(DType::kInt8, 5001, 10 * root + local));
    }
    GpuOperation o = BroadcastOf(5001, root, root);
    o.dtype = DType::kInt8;
    runner().Run(RunOf(1, o));
    const Status s = Ended(root);
    ASSERT_TRUE(s.ok()) << s.message();
    ExpectResult(SomeValues(DType::kInt8, 5001, 11 * root), 0);
  }
}

// NCCL has no int16, but copies it.
TEST_F(CollectivesTest, BroadcastsWhatNcclDoesNotKnow) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  Write(0, 0, SomeValues(DType::kInt16, 100, 1));
  GpuOperation o = BroadcastOf(100, 0, 0);
  o.dtype = DType::kInt16;
  runner().Run(RunOf(1, o));
  ASSERT_TRUE(Ended(0).ok());
  ExpectResult(SomeValues(DType::kInt16, 100, 1), 0);
}

// --- Order -------------------------------------------------------------------

// Each run needs the results of those before it: with late launches, any work
// that overtakes NCCL gives wrong numbers.
TEST_F(CollectivesTest, NothingOvertakesACollective) {
  constexpr uint32_t kRounds = 20, kElements = 3000;
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  Write(0, 0, Floats(1, kElements));
  Write(1, 0, Floats(1, kElements));
  const GpuOperation sum = OperationOf({.elements = kElements}, 0, 0);
  uint32_t slot = 0;
  float wanted = 1;
  for (uint32_t i = 0; i < kRounds; ++i) {
    GpuRun both = RunOf(1, sum);  // adds: twice as much
    both.operations[0].slot = slot++;
    runner().Run(both);
    for (uint32_t gpu = 0; gpu < kGpus; ++gpu) {  // three quarters of it
      GpuRun alone = RunOf(0, sum);
      alone.operations[0].slot = slot++;
      alone.operations[0].postscale = 0.75;
      alone.operations[0].tensors = {sum.tensors[gpu]};
      runner().Run(alone);
    }
    wanted *= 1.5f;
  }
  for (uint32_t i = 0; i < slot; ++i)
    ASSERT_TRUE(Ended(i).ok()) << Ended(i).message();
  EXPECT_EQ(Read(0, 0, kElements * sizeof(float)), Floats(wanted, kElements));
  EXPECT_EQ(Read(1, 0, kElements * sizeof(float)), Floats(wanted, kElements));
}

TEST_F(CollectivesTest, TwoCommunicatorsKeepTheOrder) {
  constexpr uint32_t kRuns = 12, kElements = 100;
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  Connect(2);
  Write(0, 0, Floats(1, kElements));
  Write(1, 0, Floats(1, kElements));
  for (uint32_t i = 0; i < kRuns; ++i) {
    const Case c = {.elements = kElements, .postscale = i % 2 ? 2.0 : 1.0};
    runner().Run(RunOf(1 + i % 2, OperationOf(c, i, 0)));
  }
  for (uint32_t i = 0; i < kRuns; ++i)
    ASSERT_TRUE(Ended(i).ok()) << Ended(i).message();
  std::vector<uint32_t> slots(kRuns);
  std::iota(slots.begin(), slots.end(), 0);
  EXPECT_EQ(EndedSlots(), slots);
  EXPECT_EQ(Read(0, 0, kElements * sizeof(float)),
            Floats(262144, kElements));  // 2^12 * 2^6
}

TEST_F(CollectivesTest, RunsWaitForTheirCommunicatorAndOthersDoNot) {
  OpenRanks(/*per_gpu=*/1);
  Write(0, 0, Floats(1, 10));
  Write(1, 0, Floats(2, 10));
  const std::string id_1 = *NewId(1);
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 0, 0)));
  Connect(2);
  runner().Run(RunOf(2, OperationOf({.elements = 10}, 1, 0)));
  runner().Run(SumOf({{0, 1}}, 10, 2));
  EXPECT_TRUE(Ended(2).ok());
  EXPECT_FALSE(HasEnded(0));
  EXPECT_FALSE(HasEnded(1));
  Connect(1, id_1);
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  EXPECT_TRUE(Ended(1).ok()) << Ended(1).message();
  EXPECT_THAT(EndedSlots(), ElementsAre(2, 0, 1));
  EXPECT_EQ(Read(1, 0, 40), Floats(6, 10));
}

TEST_F(CollectivesTest, MoreRunsThanAGpuTakes) {
  constexpr uint32_t kRuns = 2 * GpuQueue::kMostInFlight;
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, kRuns));
  EXPECT_TRUE(Becomes([=] { return hooks().launches > launches; }));
  hooks().HoldNoMore();
  const Case minimum = {.op = Op::kMin, .elements = 10};
  for (uint32_t i = 0; i < kRuns; ++i) {
    GpuRun run = RunOf(i % 3 == 0 ? 1 : 0, OperationOf(minimum, i, 0));
    if (i % 3 != 0) run.operations[0].tensors.pop_back();
    runner().Run(run);
  }
  hooks().Release();
  for (uint32_t i = 0; i < kRuns; ++i) EXPECT_TRUE(Ended(i).ok()) << i;
}

// One operation on the stream, and enough in a collective to fill the GPU.
TEST_F(CollectivesTest, AGpuTakesNoMoreWithManyOperationsInARun) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 0, 0)));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 1));
  EXPECT_TRUE(Becomes([=] { return hooks().launches == launches + 1; }));
  hooks().HoldNoMore();
  const Case minimum = {.op = Op::kMin, .elements = 10};
  GpuRun run = {.communicator = 1};
  for (uint32_t i = 0; i < GpuQueue::kMostInFlight - 2; ++i) {
    run.operations.push_back(OperationOf(minimum, 2, 0));
  }
  runner().Run(run);
  runner().Run(SumOf({{0, 1}}, 10, 3));  // there is room for one
  EXPECT_TRUE(Becomes([=] { return hooks().launches == launches + 2; }));
  runner().Run(SumOf({{0, 1}}, 10, 4));
  Settle();
  EXPECT_EQ(hooks().launches, launches + 2);
  hooks().Release();
  for (uint32_t slot = 1; slot < 5; ++slot) {
    EXPECT_TRUE(Ended(slot).ok()) << Ended(slot).message();
  }
}

// --- What cannot be ----------------------------------------------------------

TEST_F(CollectivesTest, RunsThatDoNotFit) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  uint32_t slot = 0;
  GpuOperation o = OperationOf({.elements = 10}, slot++, 0);
  o.tensors.pop_back();
  EXPECT_EQ(Refusal(o), "there is no tensor on GPU 1 of communicator 1");
  o = OperationOf({.elements = 10}, slot++, 0);
  o.tensors[0].gpu = 1;
  EXPECT_THAT(Refusal(o), HasSubstr("the tensor does not lie in it"));
  o = OperationOf({.elements = kBytes}, slot++, 0);
  EXPECT_THAT(Refusal(o), HasSubstr("the tensor does not lie in it"));
  o = OperationOf({.dtype = DType::kInt16, .elements = 10}, slot++, 0);
  EXPECT_EQ(Refusal(o), "NCCL cannot do this allreduce: sum of int16");
  o = OperationOf({.op = Op::kAdasum, .elements = 10}, slot++, 0);
  EXPECT_EQ(Refusal(o), "NCCL cannot do this allreduce: adasum of float32");
  o = OperationOf({.elements = 10}, slot++, 0);
  o.divisor = 0;
  EXPECT_EQ(Refusal(o),
            "no GPU can execute this allreduce: its divisor must be 1 to 2^31 "
            "- 1");
  o = BroadcastOf(10, slot++, 0);
  o.members[1].gpu = 0;
  EXPECT_EQ(Refusal(o),
            "member 1 of this broadcast cannot be on NCCL rank 0 of "
            "communicator 1");
  o = BroadcastOf(10, slot++, 0);
  o.members.push_back({.gpu = 2});
  EXPECT_EQ(Refusal(o),
            "member 2 of this broadcast cannot be on NCCL rank 2 of "
            "communicator 1");
  o = BroadcastOf(10, slot++, 0);
  o.members.push_back({.gpu = 1});
  EXPECT_EQ(Refusal(o),
            "member 2 of this broadcast cannot be on NCCL rank 1 of "
            "communicator 1");
  EXPECT_EQ(Refusal(BroadcastOf(10, slot++, 0), 0),
            "a run on several GPUs needs a communicator");
  EXPECT_EQ(Refusal(OperationOf({.elements = 10}, slot++, 0), 0),
            "a run on several GPUs needs a communicator");
  // The next one runs nevertheless.
  runner().Run(RunOf(1, OperationOf({.elements = 10}, slot, 0)));
  EXPECT_TRUE(Ended(slot).ok()) << Ended(slot).message();
}

TEST_F(CollectivesTest, CommunicatorsThatCannotBe) {
  OpenRanks(/*per_gpu=*/1);
  const GpuOperation o = OperationOf({.elements = 10}, 0, 0);
  const auto refusal = [&](GpuCommunicator c, std::string id) {
    GpuOperation next = o;
    next.slot = c.number;
    runner().Connect(c, std::move(id));
    return Refusal(next, c.number);
  };
  const std::string id(128, 'x');
  EXPECT_EQ(refusal({1, 2, 0, {0, 1}}, "short"),
            "communicator 1 cannot be connected: 2 of 2 GPUs from NCCL rank 0, "
            "and an id of 5 bytes");
  EXPECT_THAT(refusal({2, 2, 0, {0, 7}}, id), HasSubstr("cannot be connected"));
  EXPECT_THAT(refusal({3, 2, 1, {0, 1}}, id), HasSubstr("cannot be connected"));
  EXPECT_THAT(refusal({4, 2, 0, {}}, id), HasSubstr("cannot be connected"));
  EXPECT_EQ(refusal({kMaxGpuCommunicators + 1, 2, 0, {0, 1}}, id),
            "an epoch may have 288 communicators of GPUs, but this is number "
            "289");
}

// --- The end -----------------------------------------------------------------

TEST_F(CollectivesTest, TheDestructorEndsCommunicators) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 0, 0)));
  EXPECT_TRUE(Ended(0).ok());
  Connect(2);
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 1, 0)));
  DestroyRunner();
  EXPECT_EQ(hooks().streams, 0);
  EXPECT_THAT(stuck(), testing::IsEmpty());
}

TEST_F(CollectivesTest, CloseGivesBackWhenTheRunHasEnded) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 0, 0)));
  EXPECT_TRUE(Ended(0).ok());
  const int mapped = hooks().mapped;
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 1));
  EXPECT_TRUE(Becomes([=] { return hooks().launches > launches; }));
  hooks().HoldNoMore();
  const uint64_t collectives = NcclCalls("ncclAllReduce");
  runner().Run(RunOf(1, OperationOf({.elements = 10}, 2, 0)));
  runner().Close(1);
  // When this run is refused, the memory has been closed.
  runner().Run(SumOf({{1, 1}}, 10, 3));
  EXPECT_THAT(std::string(Ended(3).message()), HasSubstr("it is not open"));
  EXPECT_EQ(NcclCalls("ncclAllReduce"), collectives + kGpus);
  Settle();
  EXPECT_FALSE(HasEnded(2));
  EXPECT_EQ(hooks().mapped, mapped);
  hooks().Release();
  EXPECT_TRUE(Ended(2).ok()) << Ended(2).message();
  EXPECT_TRUE(Becomes([=] { return hooks().mapped == mapped - 1; }));
}

}  // namespace
}  // namespace maypole
