// Staging in GPU memory that an executor shares: kinds other than allreduce.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/staging_gpu_testing.h"

namespace maypole {
namespace {

class StagingGpuKindsTest : public StagingGpuTest {
 protected:
  // The operation of rank 0; rank 1 is the root.
  std::shared_ptr<Operation> Receive(CUdeviceptr output) {
    auto op = Make(Kind::kBroadcast, 0, output, kBytes);
    op->signature.root = 1;
    const Status s = staging_->CopyIn(op.get(), stream(), 0, kBytes);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(op->input_ready);  // nothing of this rank is copied
    return op;
  }
  std::shared_ptr<Operation> Gather(CUdeviceptr input, uint64_t bytes,
                                    Kind kind = Kind::kAllgather) {
    auto op = Make(kind, input, 0, bytes);
    const int before = communicator_->ready.load();
    const Status s = staging_->CopyIn(op.get(), stream(), bytes, 0);
    EXPECT_TRUE(s.ok()) << s.message();
    staging_->Watch(op);
    while (bytes > 0 && communicator_->ready.load() == before) {
      std::this_thread::yield();
    }
    return op;
  }
  // The result has `bytes` bytes: each byte that was there, plus 1.
  void GatherOnGpu(const std::shared_ptr<Operation>& op, uint64_t bytes) {
    GpuPlace at = UnpackGpuPlace(op->gpu_place);
    at.offset += GpuResultAt(op->signature.Bytes());
    executor_->TouchAndWait(PackGpuPlace(at), bytes);
    op->SetGathered(bytes, static_cast<int64_t>(bytes));
    op->staged->ResultOnGpu(GpuResultAt(op->signature.Bytes()));
    op->done = true;
  }
  void GatherOnHost(const std::shared_ptr<Operation>& op, const Bytes& result) {
    ASSERT_TRUE(
        op->MakeGathered(result.size(), static_cast<int64_t>(result.size())));
    std::memcpy(op->output, result.data(), result.size());
    op->done = true;
  }
  void BringToHost(const std::shared_ptr<Operation>& op) {
    bool done = false;
    const auto until = steady_clock::now() + seconds(20);
    while (!done && steady_clock::now() < until) {
      const Status s = op->staged->BringToHost(op.get(), &done);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    ASSERT_TRUE(done);
  }
};

TEST_F(StagingGpuKindsTest, AReceiverOfABroadcastCopiesNothingIn) {
  const CUdeviceptr output = OnDevice(Bytes(kBytes, 9));
  auto op = Receive(output);
  ASSERT_NE(op->gpu_place, kNoGpuPlace);
  executor_->TouchAndWait(op->gpu_place, kBytes);
  op->staged->ResultOnGpu(0);
  op->done = true;
  CopyOut(op);
  EXPECT_NE(Read(output), Bytes(kBytes, 9));

  op = Receive(output);
  BringToHost(op);
  std::memset(op->output, 5, kBytes);
  op->done = true;
  CopyOut(op);
  EXPECT_EQ(Read(output), Bytes(kBytes, 5));
}

TEST_F(StagingGpuKindsTest, AReducescattersResultIsAPartOfTheTensor) {
  constexpr uint64_t kPart = kBytes / 2;
  for (const bool on_gpu : {true, false}) {
    Bytes values(kBytes, 1);
    values[kPart] = 7;
    const CUdeviceptr input = OnDevice(values);
    const CUdeviceptr output = OnDevice(Bytes(kPart, 9));
    auto op = Make(Kind::kReducescatter, input, output, kBytes);
    const int before = communicator_->ready.load();
    ASSERT_TRUE(staging_->CopyIn(op.get(), stream(), kBytes, kPart).ok());
    staging_->Watch(op);
    while (communicator_->ready.load() == before) std::this_thread::yield();
    Bytes expected(kPart, 2);
    expected[0] = 8;
    if (on_gpu) {
      executor_->TouchAndWait(op->gpu_place, kBytes);
      op->staged->ResultOnGpu(kPart);
    } else {
      BringToHost(op);
      EXPECT_NE(op->output, op->input);
      EXPECT_EQ(std::to_integer<int>(op->input[kPart]), 7);
      std::memcpy(op->output, expected.data(), kPart);
    }
    op->done = true;
    CopyOut(op);
    EXPECT_EQ(Read(output, kPart), expected);
    EXPECT_EQ(Read(input), values);
  }
}

TEST_F(StagingGpuKindsTest, AGatherHasRoomBehindItsInput) {
  const CUdeviceptr input = OnDevice(Bytes(kBytes, 1));
  const auto op = Gather(input, kBytes);
  ASSERT_NE(op->gpu_place, kNoGpuPlace);
  EXPECT_EQ(op->gpu_room, 2 * kBytes);  // of two ranks
  GatherOnGpu(op, 2 * kBytes);
  const CUdeviceptr output = OnDevice(Bytes(2 * kBytes, 9));
  CopyOut(op, output);
  EXPECT_NE(Read(output, 2 * kBytes), Bytes(2 * kBytes, 9));
  EXPECT_EQ(Read(input), Bytes(kBytes, 1));
}

TEST_F(StagingGpuKindsTest, AnAlltoallHasRoomForWhatItSends) {
  const auto op = Gather(OnDevice(Bytes(kBytes, 1)), kBytes, Kind::kAlltoall);
  EXPECT_EQ(op->gpu_room, kBytes);
}

TEST_F(StagingGpuKindsTest, AGatherOnTheHostHasItsInputThere) {
  const auto op = Gather(OnDevice(Bytes(kBytes, 3)), kBytes);
  BringToHost(op);
  EXPECT_EQ(std::to_integer<int>(op->input[kBytes - 1]), 3);
  GatherOnHost(op, Bytes(10, 4));
  const CUdeviceptr output = OnDevice(Bytes(10, 9));
  CopyOut(op, output);
  EXPECT_EQ(Read(output, 10), Bytes(10, 4));
}

// A rank with few rows, and one without.
TEST_F(StagingGpuKindsTest, ALargeResultMakesRoomForTheNextOne) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{0}}) {
    Open(GpuMemoryMode::kAuto);  // nothing is known
    const CUdeviceptr input = bytes > 0 ? OnDevice(Bytes(bytes, 1)) : 0;
    auto op = Gather(input, bytes);
    EXPECT_EQ(op->gpu_place, kNoGpuPlace);  // it is small, for all we know
    GatherOnHost(op, Bytes(kBytes, 4));
    const CUdeviceptr output = OnDevice(Bytes(kBytes, 9));
    CopyOut(op, output);
    EXPECT_EQ(Read(output), Bytes(kBytes, 4));

    op = Gather(input, bytes);
    ASSERT_NE(op->gpu_place, kNoGpuPlace);
    EXPECT_EQ(op->gpu_room, kBytes + kBytes / 4);
    GatherOnGpu(op, kBytes);
    CopyOut(op, output);
    EXPECT_NE(Read(output), Bytes(kBytes, 4));

    auto other = Make(Kind::kAllgather, input, 0, bytes);
    other->name = "y";
    ASSERT_TRUE(staging_->CopyIn(other.get(), stream(), bytes, 0).ok());
    EXPECT_EQ(other->gpu_place, kNoGpuPlace);
  }
}

TEST_F(StagingGpuKindsTest, NamesAreForgottenSomeDay) {
  GatheredSizes sizes;
  sizes.Note("x", &gpu(), 5);
  for (size_t i = 0; i < GatheredSizes::kMostNames; ++i) {
    sizes.Note(std::to_string(i), &gpu(), 7);
  }
  EXPECT_EQ(sizes.LastOf("x").gpu, nullptr);
  EXPECT_EQ(sizes.LastOf(std::to_string(GatheredSizes::kMostNames - 1)).bytes,
            7u);
}

}  // namespace
}  // namespace maypole
