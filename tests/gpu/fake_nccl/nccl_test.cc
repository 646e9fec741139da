// What the operations leave in memory, for each kind, type and reduction.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/reduce/reduce.h"
#include "gtest/gtest.h"
#include "tests/gpu/fake_nccl/nccl_testing.h"

namespace maypole::nccl::fake {
namespace {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

class CollectiveTest : public NcclTest {
 protected:
  // What each rank has after an allreduce of inputs[rank].
  template <typename T>
  std::vector<T> AllReduce(ncclDataType_t type, ncclRedOp_t op,
                           const std::vector<std::vector<T>>& inputs) {
    const size_t count = inputs[0].size();
    std::vector<std::vector<T>> results(inputs.size());
    Together([&](Rank& rank) {
      rank.Write(rank.in(), inputs[rank.number]);
      EXPECT_EQ(nccl().ncclAllReduce(rank.in(), rank.out(), count, type, op,
                                     rank.comm, rank.stream),
                ncclSuccess);
      results[rank.number] = rank.Read<T>(rank.out(), count);
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
    return results[0];
  }
  template <typename T>
  void CheckType(ncclDataType_t type) {
    using Values = std::vector<T>;
    const std::vector<Values> inputs = {{2, 9}, {3, 1}};
    EXPECT_EQ(AllReduce(type, ncclSum, inputs), (Values{5, 10}));
    EXPECT_EQ(AllReduce(type, ncclProd, inputs), (Values{6, 9}));
    EXPECT_EQ(AllReduce(type, ncclMax, inputs), (Values{3, 9}));
    EXPECT_EQ(AllReduce(type, ncclMin, inputs), (Values{2, 1}));
    EXPECT_EQ(AllReduce(type, ncclAvg, inputs),
              (Values{static_cast<T>(2.5), 5}));
  }
};

TEST_F(CollectiveTest, AllReduceOfAllTypes) {
  Init(2, kBlocking);
  CheckType<int8_t>(ncclInt8);
  CheckType<uint8_t>(ncclUint8);
  CheckType<int32_t>(ncclInt32);
  CheckType<uint32_t>(ncclUint32);
  CheckType<int64_t>(ncclInt64);
  CheckType<uint64_t>(ncclUint64);
  CheckType<float>(ncclFloat32);
  CheckType<double>(ncclFloat64);
}

TEST_F(CollectiveTest, AllReduceOf16BitFloats) {
  Init(2, kBlocking);
  using Words = std::vector<uint16_t>;
  EXPECT_EQ(AllReduce<uint16_t>(ncclFloat16, ncclSum,
                                {{FloatToHalf(1.5)}, {FloatToHalf(2)}}),
            Words{FloatToHalf(3.5)});
  EXPECT_EQ(AllReduce<uint16_t>(ncclBfloat16, ncclAvg,
                                {{FloatToBfloat16(1.5)}, {FloatToBfloat16(2)}}),
            Words{FloatToBfloat16(1.75)});
}

TEST_F(CollectiveTest, IntegersWrapAround) {
  Init(2, kBlocking);
  EXPECT_EQ(AllReduce<int8_t>(ncclInt8, ncclSum, {{127}, {1}}),
            std::vector<int8_t>{-128});
  EXPECT_EQ(AllReduce<int64_t>(ncclInt64, ncclProd, {{INT64_MAX}, {2}}),
            std::vector<int64_t>{-2});
}

TEST_F(CollectiveTest, RanksAreAddedInOrder) {
  Init(3, kBlocking);
  EXPECT_EQ(AllReduce<float>(ncclFloat32, ncclSum, {{1e8}, {-1e8}, {1}}),
            Floats{1});
  EXPECT_EQ(AllReduce<float>(ncclFloat32, ncclSum, {{1}, {1e8}, {-1e8}}),
            Floats{0});
}

TEST_F(CollectiveTest, BroadcastAndReduceHaveARoot) {
  Init(3, kBlocking);
  Together([](Rank& rank) {
    rank.Write<int32_t>(rank.in(), {rank.number, 5});
    rank.Write<int32_t>(rank.out(), {-1, -1});
    EXPECT_EQ(nccl().ncclBroadcast(rank.in(), rank.out(), 2, ncclInt32, 2,
                                   rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 2), (Ints{2, 5}));
    EXPECT_EQ(nccl().ncclReduce(rank.in(), rank.out(), 2, ncclInt32, ncclSum, 1,
                                rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 2),
              rank.number == 1 ? (Ints{3, 15}) : (Ints{2, 5}));
  });
}

TEST_F(CollectiveTest, AllGatherAndReduceScatterMayBeInPlace) {
  Init(3, kBlocking);
  Together([](Rank& rank) {
    const size_t own = static_cast<size_t>(rank.number) * 8;
    rank.Write<int32_t>(rank.out(own), {rank.number, 7});
    EXPECT_EQ(nccl().ncclAllGather(rank.out(own), rank.out(), 2, ncclInt32,
                                   rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(), 6), (Ints{0, 7, 1, 7, 2, 7}));
    EXPECT_EQ(nccl().ncclReduceScatter(rank.out(), rank.out(own), 2, ncclInt32,
                                       ncclSum, rank.comm, rank.stream),
              ncclSuccess);
    EXPECT_EQ(rank.Read<int32_t>(rank.out(own), 2),
              (Ints{rank.number * 3, 21}));
  });
}

TEST_F(CollectiveTest, ASendMeetsTheReceive) {
  Init(2, kBlocking);
  Together([](Rank& rank) {
    if (rank.number == 0) {
      rank.Write<int32_t>(rank.in(), {1, 2});
      EXPECT_EQ(
          nccl().ncclSend(rank.in(), 1, ncclInt32, 1, rank.comm, rank.stream),
          ncclSuccess);
      EXPECT_EQ(
          nccl().ncclSend(rank.in(4), 1, ncclInt32, 1, rank.comm, rank.stream),
          ncclSuccess);
    } else {
      EXPECT_EQ(
          nccl().ncclRecv(rank.out(4), 1, ncclInt32, 0, rank.comm, rank.stream),
          ncclSuccess);
      EXPECT_EQ(
          nccl().ncclRecv(rank.out(), 1, ncclInt32, 0, rank.comm, rank.stream),
          ncclSuccess);
      EXPECT_EQ(rank.Read<int32_t>(rank.out(), 2), (Ints{2, 1}));
    }
  });
}

TEST_F(CollectiveTest, AFirstSendWaitsForTheReceiver) {
  Init(2, kNonBlocking);
  EXPECT_EQ(nccl().ncclSend(ranks_[0].in(), 1, ncclInt32, 1, ranks_[0].comm,
                            ranks_[0].stream),
            ncclInProgress);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(ranks_[0].state(), ncclInProgress);
  EXPECT_EQ(nccl().ncclRecv(ranks_[1].out(), 1, ncclInt32, 0, ranks_[1].comm,
                            ranks_[1].stream),
            ncclInProgress);
  for (Rank& rank : ranks_) EXPECT_EQ(rank.Ready(), ncclSuccess);
}

TEST_F(CollectiveTest, OneRankIsEnough) {
  Init(1, kBlocking);
  EXPECT_EQ(AllReduce<float>(ncclFloat32, ncclSum, {{1, 2}}), (Floats{1, 2}));
}

TEST_F(CollectiveTest, NothingIsNoOperation) {
  std::deque<Rank>& ranks = Init(2, kNonBlocking);
  ranks[0].Enter();
  EXPECT_EQ(nccl().ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum,
                                 ranks[0].comm, ranks[0].stream),
            ncclSuccess);
}

TEST_F(CollectiveTest, RefusesWrongArguments) {
  std::deque<Rank>& ranks = Init(1, kBlocking);
  Rank& rank = ranks[0];
  rank.Enter();
  const auto allreduce = [&](int type, int op, ncclComm_t comm,
                             CUstream stream) {
    return nccl().ncclAllReduce(rank.in(), rank.out(), 1,
                                static_cast<ncclDataType_t>(type),
                                static_cast<ncclRedOp_t>(op), comm, stream);
  };
  EXPECT_EQ(allreduce(99, ncclSum, rank.comm, rank.stream),
            ncclInvalidArgument);
  EXPECT_EQ(allreduce(ncclInt8, 99, rank.comm, rank.stream),
            ncclInvalidArgument);
  EXPECT_EQ(allreduce(ncclInt8, ncclSum, nullptr, rank.stream),
            ncclInvalidArgument);
  EXPECT_EQ(nccl().ncclBroadcast(rank.in(), rank.out(), 1, ncclInt8, 1,
                                 rank.comm, rank.stream),
            ncclInvalidArgument);
  EXPECT_EQ(nccl().ncclGetLastError(nullptr),
            std::string("ncclBroadcast : invalid root or peer"));
  EXPECT_EQ(allreduce(ncclInt8, ncclSum, rank.comm,
                      reinterpret_cast<CUstream>(0x123450)),
            ncclUnhandledCudaError);
}

TEST_F(CollectiveTest, TellsWhatACommunicatorIs) {
  Init(3, kBlocking);
  for (const Rank& rank : ranks_) {
    int number = -1, count = -1;
    EXPECT_EQ(nccl().ncclCommUserRank(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(nccl().ncclCommCount(rank.comm, &count), ncclSuccess);
    EXPECT_EQ(number, rank.number);
    EXPECT_EQ(count, 3);
  }
  EXPECT_EQ(nccl().ncclGetErrorString(ncclSuccess), std::string("no error"));
}

}  // namespace
}  // namespace maypole::nccl::fake
