// How communicators end, and what ends the process.
#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/gpu/fake_nccl/nccl_testing.h"

namespace maypole::nccl::fake {
namespace {

using std::chrono::milliseconds;

class AbortTest : public NcclTest {
 protected:
  ncclResult_t AllReduce(Rank& rank) {
    rank.Enter();
    return nccl().ncclAllReduce(rank.in(), rank.out(), 1, ncclInt32, ncclSum,
                                rank.comm, rank.stream);
  }
  void Connect() {
    Together([&](Rank& rank) {
      AllReduce(rank);
      EXPECT_EQ(rank.Ready(), ncclSuccess);
    });
  }
};
using AbortDeathTest = AbortTest;

TEST_F(AbortTest, EndsAnInitThatWaitsForOthers) {
  Make(2);
  ncclUniqueId id;
  EXPECT_EQ(nccl().ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(InitRank(ranks_[1], 2, id, kNonBlocking), ncclInProgress);
  std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(ranks_[1].state(), ncclInProgress);
  ranks_[1].Abort();
}

TEST_F(AbortTest, EndsAFirstCollectiveThatWaitsForOthers) {
  Init(2, kNonBlocking);
  EXPECT_EQ(AllReduce(ranks_[0]), ncclInProgress);
  std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(ranks_[0].state(), ncclInProgress);
  ranks_[0].Abort();
  EXPECT_EQ(cuda().cuStreamSynchronize(ranks_[0].stream), cuda::CUDA_SUCCESS);
}

TEST_F(AbortTest, EndsWhatHoldsAStream) {
  Init(2, kNonBlocking);
  Connect();
  EXPECT_EQ(AllReduce(ranks_[0]), ncclInProgress);
  EXPECT_EQ(ranks_[0].Ready(), ncclSuccess);
  std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(cuda().cuStreamQuery(ranks_[0].stream), cuda::CUDA_ERROR_NOT_READY);
  ranks_[0].Abort();
  EXPECT_EQ(cuda().cuStreamSynchronize(ranks_[0].stream), cuda::CUDA_SUCCESS);
  EXPECT_EQ(ranks_[1].state(), ncclSuccess);  // it cannot know
}

TEST_F(AbortTest, WaitsForWhatTheStreamDoesBefore) {
  Init(1, kBlocking);
  Rank& rank = ranks_[0];
  rank.Enter();
  cuda::CUmodule module = nullptr;
  cuda::CUfunction wait = nullptr;
  void* flag = nullptr;
  EXPECT_EQ(cuda().cuMemHostAlloc(&flag, 8, 0), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuModuleLoadData(&module, ".version 8.0"),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuModuleGetFunction(&wait, module, "fake_wait"),
            cuda::CUDA_SUCCESS);
  void* arguments[] = {&flag};
  EXPECT_EQ(cuda().cuLaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, rank.stream,
                                  arguments, nullptr),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(AllReduce(rank), ncclSuccess);
  std::atomic<bool> aborted = false;
  std::thread thread([&] {
    rank.Abort();
    aborted = true;
  });
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(aborted);
  std::atomic_ref(*static_cast<uint64_t*>(flag)).store(1);
  thread.join();
}

TEST_F(AbortTest, InAGroup) {
  Init(3, kNonBlocking);
  Connect();
  EXPECT_EQ(AllReduce(ranks_[0]), ncclInProgress);
  EXPECT_EQ(AllReduce(ranks_[1]), ncclInProgress);
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) rank.Abort();
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclSuccess);
}

// One communicator's abort ends the group that it waits in.
TEST_F(AbortTest, OfOneCancelsItsGroup) {
  Make(2);
  ncclUniqueId ids[2];
  EXPECT_EQ(nccl().ncclGroupStart(), ncclSuccess);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(nccl().ncclGetUniqueId(&ids[rank.number]), ncclSuccess);
    EXPECT_EQ(InitRank(rank, 2, ids[rank.number], kNonBlocking),
              ncclInProgress);
  }
  EXPECT_EQ(nccl().ncclGroupEnd(), ncclInProgress);
  ranks_[0].Abort();
  EXPECT_NE(ranks_[1].Ready(), ncclSuccess);
}

TEST_F(AbortTest, OfNothing) {
  EXPECT_EQ(nccl().ncclCommAbort(nullptr), ncclSuccess);
  EXPECT_EQ(nccl().ncclCommDestroy(nullptr), ncclSuccess);
}

TEST_F(AbortTest, ADestructionWaitsForAllRanks) {
  Init(2, kBlocking);
  std::atomic<int> destroyed = 0;
  std::thread thread([&] {
    ranks_[0].Destroy();
    ++destroyed;
  });
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(destroyed, 0);
  ranks_[1].Destroy();
  thread.join();
}

TEST_F(AbortTest, AFinalisedCommunicatorIsDestroyedAlone) {
  Init(2, kNonBlocking);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(nccl().ncclCommFinalize(rank.comm), ncclInProgress);
  }
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.Ready(), ncclSuccess);
    rank.Destroy();
  }
}

TEST_F(AbortDeathTest, UseBeforeThePreviousCallHasEnded) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto use = [&] {
    Init(2, kNonBlocking);
    AllReduce(ranks_[0]);
    AllReduce(ranks_[0]);
  };
  EXPECT_DEATH(use(), "fake libnccl: ncclAllReduce on rank 0: Attempt to use");
}

TEST_F(AbortDeathTest, UseAfterDestruction) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto use = [&] {
    Init(1, kBlocking);
    nccl().ncclCommDestroy(ranks_[0].comm);
    AllReduce(ranks_[0]);
  };
  EXPECT_DEATH(use(), "fake libnccl: there is no such communicator");
}

TEST_F(AbortDeathTest, HostMemoryAndOverlaps) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto host_memory = [&] {
    Init(1, kBlocking);
    int value = 0;
    nccl().ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, ranks_[0].comm,
                         ranks_[0].stream);
  };
  EXPECT_DEATH(host_memory(), "count 1, int32, sum.*not memory that the GPU");
  const auto overlap = [&] {
    Init(1, kBlocking);
    nccl().ncclAllReduce(ranks_[0].in(), ranks_[0].in(4), 2, ncclInt32, ncclSum,
                         ranks_[0].comm, ranks_[0].stream);
  };
  EXPECT_DEATH(overlap(), "input and output overlap");
}

TEST_F(AbortDeathTest, CallsThatDoNotMatch) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto allreduce = [](Rank& rank, size_t count, ncclDataType_t type,
                            ncclRedOp_t op) {
    nccl().ncclAllReduce(rank.in(), rank.out(), count, type, op, rank.comm,
                         rank.stream);
  };
  const auto run = [&](auto other) {
    Init(2, kBlocking);
    Connect();
    allreduce(ranks_[0], 4, ncclInt32, ncclSum);
    other(ranks_[1]);
    std::this_thread::sleep_for(std::chrono::seconds(10));
  };
  // Either may be the first to come.
  const auto line = [](const std::string& call) {
    const std::string own = "rank 0 calls ncclAllReduce.count 4, int32, sum.";
    const std::string others = "rank 1 calls " + call;
    return "do not match: (" + own + ", " + others + "|" + others + ", " + own +
           ")";
  };
  EXPECT_DEATH(run([&](Rank& rank) { allreduce(rank, 5, ncclInt32, ncclSum); }),
               line("ncclAllReduce.count 5, int32, sum."));
  EXPECT_DEATH(
      run([&](Rank& rank) { allreduce(rank, 4, ncclUint32, ncclMax); }),
      line("ncclAllReduce.count 4, uint32, max."));
}

TEST_F(AbortDeathTest, RootsAndKindsThatDoNotMatch) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto roots = [&] {
    Init(2, kBlocking);
    Together([&](Rank& rank) {
      nccl().ncclBroadcast(rank.in(), rank.out(), 1, ncclInt32, rank.number,
                           rank.comm, rank.stream);
    });
    std::this_thread::sleep_for(std::chrono::seconds(10));
  };
  EXPECT_DEATH(roots(), "do not match: .*root [01].*root [01]");
  const auto kinds = [&] {
    Init(2, kNonBlocking);
    AllReduce(ranks_[0]);
    nccl().ncclCommFinalize(ranks_[1].comm);
    std::this_thread::sleep_for(std::chrono::seconds(10));
  };
  EXPECT_DEATH(kinds(),
               "do not match: .*(the first ncclAllReduce"
               "|ncclCommFinalize), rank");
}

}  // namespace
}  // namespace maypole::nccl::fake
