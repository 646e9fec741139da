#include "coordinator/core/ordering/fusion.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/limits.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using Runs = std::vector<std::vector<size_t>>;

ReadyOperation Ready(Kind kind, DType dtype, uint64_t bytes) {
  ReadyOperation r;
  r.signature.kind = kind;
  r.signature.dtype = dtype;
  r.bytes = bytes;
  return r;
}

TEST(FuseTest, FusesAllreducesThatAgreeButForTheShape) {
  std::vector<ReadyOperation> ready(
      3, Ready(Kind::kAllreduce, DType::kFloat32, 8));
  ready[1].signature.dims = 2;
  ready[1].signature.shape[0] = 7;
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 1, 2}}));
}

TEST(FuseTest, SeparatesWhatDoesNotAgree) {
  std::vector<ReadyOperation> ready(
      6, Ready(Kind::kAllreduce, DType::kFloat32, 8));
  ready[1].signature.dtype = DType::kFloat16;
  ready[2].signature.op = Op::kAverage;
  ready[3].signature.prescale = 0.5;
  ready[4].signature.device = Device::kGpu;
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 5}, {1}, {2}, {3}, {4}}));
}

TEST(FuseTest, ComparesScaleFactorsByTheirBits) {
  std::vector<ReadyOperation> ready(
      8, Ready(Kind::kAllreduce, DType::kFloat32, 8));
  ready[0].signature.postscale = 0.0;
  ready[1].signature.postscale = -0.0;
  ready[2].signature.postscale = 0.1;
  ready[3].signature.postscale = std::nextafter(0.1, 1.0);
  for (size_t i : {4, 5}) {
    ready[i].signature.prescale = std::numeric_limits<double>::quiet_NaN();
  }
  ready[6].signature.postscale = 0.0;
  ready[7].signature.postscale = -0.0;
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 6}, {1, 7}, {2}, {3}, {4, 5}}));
}

TEST(FuseTest, FusesBroadcastsByRoot) {
  std::vector<ReadyOperation> ready(3,
                                    Ready(Kind::kBroadcast, DType::kInt64, 8));
  ready[0].signature.root = 0;
  ready[1].signature.root = 1;
  ready[2].signature.root = 0;
  ready[2].signature.op = Op::kAverage;  // means nothing for a broadcast
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 2}, {1}}));
}

TEST(FuseTest, FusesReducescattersButNotWithAllreduces) {
  std::vector<ReadyOperation> ready(
      5, Ready(Kind::kReducescatter, DType::kFloat32, 8));
  ready[1].signature.kind = Kind::kAllreduce;
  ready[3].signature.op = Op::kAverage;
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 2, 4}, {1}, {3}}));
}

TEST(FuseTest, SeparatesProcessSets) {
  for (const Kind kind :
       {Kind::kAllreduce, Kind::kReducescatter, Kind::kBroadcast}) {
    std::vector<ReadyOperation> ready(4, Ready(kind, DType::kFloat32, 8));
    ready[1].signature.process_set = 1;
    ready[3].signature.process_set = 1;
    EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 2}, {1, 3}}));
  }
}

TEST(FuseTest, GathersAndBarriersRunAlone) {
  std::vector<ReadyOperation> ready = {
      Ready(Kind::kAlltoall, DType::kFloat32, 8),
      Ready(Kind::kAlltoall, DType::kFloat32, 8),
      Ready(Kind::kAllgather, DType::kFloat32, 8),
      Ready(Kind::kAllgather, DType::kFloat32, 8),
      Ready(Kind::kBarrier, DType::kUint8, 0),
      Ready(Kind::kBarrier, DType::kUint8, 0)};
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0}, {1}, {2}, {3}, {4}, {5}}));
}

TEST(FuseTest, CountsBytesRoundedUpTo64) {
  std::vector<ReadyOperation> ready(
      5, Ready(Kind::kAllreduce, DType::kFloat32, 1));
  EXPECT_EQ(Fuse(ready, 128), (Runs{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(Fuse(ready, 127), (Runs{{0}, {1}, {2}, {3}, {4}}));
}

TEST(FuseTest, LargerThanTheThresholdRunsAloneAndKeepsTheOpenRun) {
  std::vector<ReadyOperation> ready(
      3, Ready(Kind::kAllreduce, DType::kFloat32, 64));
  ready[1].bytes = 1000;
  EXPECT_EQ(Fuse(ready, 128), (Runs{{0, 2}, {1}}));
}

TEST(FuseTest, ThresholdZeroTurnsItOff) {
  std::vector<ReadyOperation> ready(
      2, Ready(Kind::kAllreduce, DType::kFloat32, 0));
  EXPECT_EQ(Fuse(ready, 0), (Runs{{0}, {1}}));
}

TEST(FuseTest, LimitsTheOperationsOfARun) {
  std::vector<ReadyOperation> ready(
      2 * kMaxRunOperations + 1, Ready(Kind::kAllreduce, DType::kFloat32, 4));
  const Runs runs = Fuse(ready, uint64_t{1} << 40);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].size(), kMaxRunOperations);
  EXPECT_EQ(runs[1].size(), kMaxRunOperations);
  EXPECT_EQ(runs[2], (std::vector<size_t>{2 * kMaxRunOperations}));
}

TEST(FuseTest, ReducescattersRunAloneOnGpus) {
  std::vector<ReadyOperation> ready(
      4, Ready(Kind::kReducescatter, DType::kFloat32, 4));
  ready[1].communicator = ready[3].communicator = 1;
  EXPECT_EQ(Fuse(ready, 1024), (Runs{{0, 2}, {1}, {3}}));
}

// On each communicator, whatever the host executes between them.
TEST(FuseTest, LimitsTheOperationsOfARunOnGpus) {
  std::vector<ReadyOperation> ready(
      3 * (kMaxGpuRunOperations + 1),
      Ready(Kind::kAllreduce, DType::kFloat32, 4));
  for (size_t i = 0; i < ready.size(); ++i) {
    ready[i].communicator = static_cast<uint32_t>(i % 3);
  }
  const Runs runs = Fuse(ready, uint64_t{1} << 40);
  ASSERT_EQ(runs.size(), 5u);
  EXPECT_EQ(runs[0].size(), kMaxGpuRunOperations + 1);  // of the host
  EXPECT_EQ(runs[1].size(), kMaxGpuRunOperations);
  EXPECT_EQ(runs[2].size(), kMaxGpuRunOperations);
  EXPECT_EQ(runs[3], (std::vector<size_t>{3 * kMaxGpuRunOperations + 1}));
  EXPECT_EQ(runs[4], (std::vector<size_t>{3 * kMaxGpuRunOperations + 2}));
}

}  // namespace
}  // namespace maypole::coordinator
