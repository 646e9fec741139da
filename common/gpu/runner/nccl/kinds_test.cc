// Operations of all kinds on the two GPUs of a node, or on one of them. The
// environment's seeds make the GPUs' work and NCCL's calls late.
#include <gtest/gtest.h>

#include <numeric>

#include "common/gpu/runner/testing/collective_fixture.h"

namespace maypole {
namespace {

class KindsTest : public CollectiveFixture,
                  public testing::WithParamInterface<uint32_t> {
 protected:
  // Each kind in each shape twice, one run after the other.
  void RunAll(uint32_t communicator, std::vector<uint32_t> ranks) {
    std::vector<KindCase> kinds;
    for (const Kind kind : kKindsOfGpus) {
      for (const Shape& shape : kShapes) {
        const auto place = static_cast<uint32_t>(kinds.size());
        kinds.push_back(MakeKind(kind, shape, ranks, 10 * GetParam() + place));
        WriteInputs(kinds.back(), place);
        runner().Run(
            RunOf(communicator, OperationOf(kinds.back(), place, place)));
      }
    }
    for (uint32_t i = 0; i < kinds.size(); ++i) {
      const Status s = Ended(i);
      ASSERT_TRUE(s.ok()) << s.message() << " of " << Name(kinds[i].kind);
      ExpectResults(kinds[i], i);
    }
    std::vector<uint32_t> slots(kinds.size());
    std::iota(slots.begin(), slots.end(), 0);
    EXPECT_EQ(EndedSlots(), slots);
  }
  std::vector<uint32_t> Ranks(uint32_t count) const {
    std::vector<uint32_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

TEST_P(KindsTest, WithACommunicator) {
  OpenRanks(GetParam());
  Connect(1);
  RunAll(1, Ranks(ranks()));
}

// A process set may have its ranks in such an order.
TEST_P(KindsTest, InAnotherOrderOfMembers) {
  OpenRanks(GetParam());
  Connect(1);
  std::vector<uint32_t> members = Ranks(ranks());
  std::reverse(members.begin(), members.end());
  RunAll(1, members);
}

TEST_P(KindsTest, OnOneGpu) {
  OpenRanks(GetParam());
  RunAll(0, Ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(RanksOfAGpu, KindsTest, testing::Values(1u, 2u, 3u));

// More pieces than one launch copies.
TEST_F(KindsTest, ManyRanksOnOneGpu) {
  constexpr uint32_t kRanks = 12;
  OpenRanks(kRanks);
  const std::vector<uint32_t> all = Ranks(kRanks);
  const KindCase gathered = MakeKind(Kind::kAllgather, {}, all, 5);
  const KindCase exchanged = MakeKind(Kind::kAlltoall, {}, all, 6);
  WriteInputs(gathered, 0);
  WriteInputs(exchanged, 1);
  const int launches = hooks().launches;
  runner().Run(RunOf(0, OperationOf(gathered, 0, 0)));
  runner().Run(RunOf(0, OperationOf(exchanged, 1, 1)));
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  EXPECT_TRUE(Ended(1).ok()) << Ended(1).message();
  EXPECT_EQ(hooks().launches, launches + 4);
  ExpectResults(gathered, 0);
  ExpectResults(exchanged, 1);
}

// NCCL's own collectives where they fit, and no needless kernel.
TEST_F(KindsTest, CallsOfNccl) {
  OpenRanks(/*per_gpu=*/1);
  Connect(1);
  const int launches = hooks().launches;
  uint32_t place = 0;
  const auto run = [&](KindCase k) {
    k.c = {.elements = k.c.elements};
    WriteInputs(k, place);
    runner().Run(RunOf(1, OperationOf(k, place, place)));
    const Status s = Ended(place);
    ASSERT_TRUE(s.ok()) << s.message();
    ExpectResults(k, place++);
  };
  const auto make = [&](Kind kind) {
    return MakeKind(kind, {}, {0, 1}, 1 + place);
  };
  uint64_t calls = NcclCalls("ncclAllGather");
  run(make(Kind::kAllgather));
  EXPECT_EQ(NcclCalls("ncclAllGather"), calls + kGpus);
  calls = NcclCalls("ncclReduceScatter");
  run(make(Kind::kReducescatter));
  EXPECT_EQ(NcclCalls("ncclReduceScatter"), calls + kGpus);
  run(make(Kind::kAllreduce));
  run(make(Kind::kBroadcast));
  calls = NcclCalls("ncclSend");
  run(make(Kind::kAlltoall));
  EXPECT_EQ(NcclCalls("ncclSend"), calls + kGpus);
  // Nothing crosses between the GPUs.
  KindCase own = make(Kind::kAlltoall);
  own.counts = {7, 0, 0, 0};
  run(own);
  // Only one member has data.
  KindCase one = make(Kind::kAllgather);
  one.counts = {0, 100};
  calls = NcclCalls("ncclBroadcast");
  run(one);
  EXPECT_EQ(NcclCalls("ncclBroadcast"), calls + kGpus);
  EXPECT_EQ(hooks().launches, launches);
}

}  // namespace
}  // namespace maypole
