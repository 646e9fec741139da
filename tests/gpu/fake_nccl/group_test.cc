// Communicators that do not block, groups, and the order of streams.
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/fake_nccl/nccl_testing.h"

namespace maypole::nccl::fake {
namespace {

using Ints = std::vector<int32_t>;

class GroupTest : public NcclTest {
 protected:
  // As from one thread that uses several ranks.
  ncclResult_t AllReduce(Rank& rank, size_t byte = 0) {
    rank.Enter();
    return nccl().ncclAllReduce(rank.in(byte), rank.out(byte), 1, ncclInt32,
                                ncclSum, rank.comm, rank.stream);
  }
  ncclUniqueId NewId() {
    ncclUniqueId id;
    EXPECT_EQ(nccl().ncclGetUniqueId(&id), ncclSuccess);
    return id;
  }
};

TEST_F(GroupTest, ANonBlockingInitWritesTheHandleTwice) {
  Make(2);
  const ncclUniqueId id = NewId();
  EXPECT_EQ(InitRank(ranks_[0], 2, id, kNonBlocking), ncclInProgress);
  ASSERT_NE(ranks_[0].comm, nullptr);
  __atomic_store_n(&ranks_[0].slot, nullptr, __ATOMIC_RELEASE);
  EXPECT_EQ(InitRank(ranks_[1], 2, id, kNonBlocking), ncclInProgress);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.Ready(), ncclSuccess);
    EXPECT_EQ(__atomic_load_n(&rank.slot, __ATOMIC_ACQUIRE), rank.comm);
  }
}

TEST_F(GroupTest, WhatIsEnqueuedNextMayRunBeforeACollective) {
  Init(2, kNonBlocking);
  for (Rank& rank : ranks_) {
    rank.Enter();
    rank.Write<int32_t>(rank.in(), {1});
    rank.Write<int32_t>(rank.out(), {7});
  }
  EXPECT_EQ(AllReduce(ranks_[0]), ncclInProgress);
  EXPECT_EQ(ranks_[0].Read<int32_t>(ranks_[0].out(), 1), Ints{7});
  EXPECT_EQ(ranks_[0].state(), ncclInProgress);  // rank 1 has not called it
  EXPECT_EQ(AllReduce(ranks_[1]), ncclInProgress);
  for (Rank& rank : ranks_) {
    rank.Enter();
    EXPECT_EQ(rank.Ready(), ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 1), Ints{2});
  }
}

TEST_F(GroupTest, ALaunchIsLate) {
  Init(1, kNonBlocking);
  Rank& rank = ranks_[0];
  int early = 0;
  for (int i = 0; i < 20; ++i) {
    rank.Enter();
    rank.Write<int32_t>(rank.in(), {1});
    rank.Write<int32_t>(rank.out(), {7});
    EXPECT_EQ(AllReduce(rank), ncclInProgress);
    early += rank.Read<int32_t>(rank.out(), 1) == Ints{7};
    EXPECT_EQ(rank.Ready(), ncclSuccess);
  }
  EXPECT_GT(early, 0);
}

TEST_F(GroupTest, ACollectiveHoldsItsStream) {
  Init(2, kBlocking);
  Together([&](Rank& rank) { EXPECT_EQ(AllReduce(rank), ncclSuccess); });
  EXPECT_EQ(AllReduce(ranks_[0]), ncclSuccess);  // connected: returns at once
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cuda().cuStreamQuery(ranks_[0].stream), cuda::CUDA_ERROR_NOT_READY);
  EXPECT_EQ(AllReduce(ranks_[1]), ncclSuccess);
  ranks_[0].Enter();
  EXPECT_EQ(cuda().cuStreamSynchronize(ranks_[0].stream), cuda::CUDA_SUCCESS);
}

// Without the groups each loop would wait for ever in its first round.
TEST_F(GroupTest, OneThreadUsesSeveralRanks) {
  Make(3);
  const ncclUniqueId id = NewId();
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(InitRank(rank, 3, id, kBlocking), ncclSuccess);
  }
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
  for (Rank& rank : ranks_) {
    rank.Enter();
    rank.Write<int32_t>(rank.in(), {rank.number, 10});
  }
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(AllReduce(rank), ncclSuccess);
    EXPECT_EQ(AllReduce(rank, 4), ncclSuccess);
  }
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
  for (Rank& rank : ranks_) {
    rank.Enter();
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 2), (Ints{3, 30}));
  }
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) rank.Destroy();
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
}

TEST_F(GroupTest, NonBlockingRanksOfOneThread) {
  Make(2);
  const ncclUniqueId id = NewId();
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(InitRank(rank, 2, id, kNonBlocking), ncclInProgress);
  }
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclInProgress);
  for (Rank& rank : ranks_) EXPECT_EQ(rank.Ready(), ncclSuccess);
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) {
    rank.Enter();
    rank.Write<int32_t>(rank.in(), {4});
    EXPECT_EQ(AllReduce(rank), ncclSuccess);  // nothing has happened yet
  }
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclInProgress);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.Ready(), ncclSuccess);
    rank.Enter();
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 1), Ints{8});
  }
}

TEST_F(GroupTest, RanksExchangeInAGroup) {
  Init(3, kBlocking);
  Together([](Rank& rank) {
    rank.Write<int32_t>(rank.in(), {rank.number});
    EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      const size_t byte = static_cast<size_t>(peer) * 4;
      EXPECT_EQ(nccl().ncclSend(rank.in(), 1, ncclInt32, peer, rank.comm,
                                rank.stream),
                ncclSuccess);
      EXPECT_EQ(nccl().ncclRecv(rank.out(byte), 1, ncclInt32, peer, rank.comm,
                                rank.stream),
                ncclSuccess);
    }
    EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 3), (Ints{0, 1, 2}));
  });
}

TEST_F(GroupTest, AGroupTakesAllItsStreamsAlong) {
  Init(1, kBlocking);
  Rank& rank = ranks_[0];
  rank.Enter();
  CUstream other = nullptr;
  EXPECT_EQ(cuda().cuStreamCreate(&other, cuda::CU_STREAM_NON_BLOCKING), 0);
  for (int i = 0; i < 20; ++i) {
    rank.Write<int32_t>(rank.in(), {i, i});
    std::swap(rank.stream, other);
    rank.Write<int32_t>(rank.out(), {-1, -1});
    std::swap(rank.stream, other);
    EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(AllReduce(rank), ncclSuccess);
    std::swap(rank.stream, other);
    EXPECT_EQ(AllReduce(rank, 4), ncclSuccess);
    std::swap(rank.stream, other);
    EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 2), (Ints{i, i}));
  }
}

TEST_F(GroupTest, BlockingAndOtherCommunicatorsDoNotMix) {
  Make(2);
  const ncclUniqueId ids[] = {NewId(), NewId()};
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  InitRank(ranks_[0], 1, ids[0], kBlocking);
  ncclConfig_t config;
  config.blocking = 0;
  ranks_[1].Enter();
  nccl().ncclCommInitRankConfig(&ranks_[1].comm, 1, ids[1], 0, &config);
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclInvalidArgument);
}

TEST_F(GroupTest, AGroupMustHaveBegun) {
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclInvalidUsage);
}

TEST_F(GroupTest, AUniqueIdServesOnce) {
  Make(2);
  const ncclUniqueId id = NewId();
  EXPECT_EQ(InitRank(ranks_[0], 1, id, kBlocking), ncclSuccess);
  ranks_[1].Enter();
  ncclConfig_t config;
  EXPECT_EQ(nccl().ncclCommInitRankConfig(&ranks_[1].comm, 1, id, 0, &config),
            ncclSystemError);
}

}  // namespace
}  // namespace maypole::nccl::fake
