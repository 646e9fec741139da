// How the host learns that a stream has done its work: by a word that the
// stream writes, by a word that a kernel writes, or by an event.
#include <memory>
#include <thread>

#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {
namespace {

enum class Way { kStreamWrites, kKernelWrites, kEvent };

constexpr size_t kSignalBytes = 1 << 20;
constexpr int kSignalRounds = 16;

class SignalTest : public ConformanceTest,
                   public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    if (GetParam() == Way::kStreamWrites && !device().gpu().writes_values()) {
      GTEST_SKIP() << "the device's streams cannot write 64-bit words";
    }
    if (GetParam() == Way::kKernelWrites &&
        device().Kernel(KernelGroup::kCopy, kWriteWordKernel) == nullptr) {
      GTEST_SKIP() << "built without kernels (nvcc)";
    }
    host_ = std::make_unique<PinnedMemory>(device(), kSignalBytes);
    words_ = std::make_unique<PinnedMemory>(device(), 4096);
    StoreWord(words_->word(0), 0);
    event_ = device().NewEvent();
    memory_ = device().Alloc(2 * kSignalBytes);
  }
  void TearDown() override {
    device().Synchronize();
    FreeOccupied();
    if (memory_ != 0) device().Free(memory_);
    if (event_ != nullptr) cuda().cuEventDestroy(event_);
  }

  void Signal(uint64_t value) {
    if (GetParam() == Way::kKernelWrites) {
      device().WriteWord(words_->address(), value, stream());
    } else if (GetParam() == Way::kStreamWrites) {
      ASSERT_EQ(cuda().cuStreamWriteValue64(stream(), words_->address(), value,
                                            CU_STREAM_WRITE_VALUE_DEFAULT),
                CUDA_SUCCESS);
    } else {
      ASSERT_EQ(cuda().cuEventRecord(event_, stream()), CUDA_SUCCESS);
    }
  }
  bool Seen(uint64_t value) {
    if (GetParam() != Way::kEvent) return LoadWord(words_->word(0)) == value;
    const CUresult result = cuda().cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    EXPECT_EQ(result, CUDA_SUCCESS);
    return true;
  }
  void Await(uint64_t value) {
    if (GetParam() != Way::kEvent) return AwaitWord(words_->word(0), value);
    while (!Seen(value)) std::this_thread::yield();
  }

  std::unique_ptr<PinnedMemory> host_, words_;
  CUevent event_ = nullptr;
  CUdeviceptr memory_ = 0;
};

TEST_P(SignalTest, IsSeenWhenTheCopyToTheHostIsWhole) {
  device().Fill(memory_, kSignalBytes, 1);
  device().Fill(memory_ + kSignalBytes, kSignalBytes, 2);
  for (int round = 1; round <= kSignalRounds; ++round) {
    const bool odd = round % 2 != 0;
    const size_t bytes = kSignalBytes >> (round % 5);
    ASSERT_EQ(cuda().cuMemcpyAsync(AddressOf(host_->data()),
                                   memory_ + (odd ? 0 : kSignalBytes), bytes,
                                   stream()),
              CUDA_SUCCESS);
    Signal(round);
    Await(round);
    ASSERT_TRUE(AreAll(host_->data(), bytes, odd ? 1 : 2)) << round;
  }
}

// The host may use the memory again.
TEST_P(SignalTest, IsSeenWhenTheCopyFromTheHostIsWhole) {
  for (int round = 1; round <= kSignalRounds; ++round) {
    const auto value = static_cast<unsigned char>(round);
    const size_t bytes = kSignalBytes >> (round % 5);
    std::fill_n(host_->data(), bytes, std::byte{value});
    ASSERT_EQ(cuda().cuMemcpyAsync(memory_, AddressOf(host_->data()), bytes,
                                   stream()),
              CUDA_SUCCESS);
    Signal(round);
    Await(round);
    std::fill_n(host_->data(), bytes, std::byte{0xff});
    ASSERT_TRUE(AreAll(device().Download(memory_, bytes), value)) << round;
  }
}

TEST_P(SignalTest, IsNotSeenBeforeTheWorkBeforeIt) {
  const CUevent done = device().NewEvent();
  Occupy(stream());
  ASSERT_EQ(cuda().cuEventRecord(done, stream()), CUDA_SUCCESS);
  Signal(1);
  uint64_t looks = 1;
  while (!Seen(1)) ++looks;
  EXPECT_EQ(cuda().cuEventQuery(done), CUDA_SUCCESS);
  RecordProperty("looks", std::to_string(looks));
  EXPECT_EQ(cuda().cuEventDestroy(done), CUDA_SUCCESS);
}

std::string NameOf(const testing::TestParamInfo<Way>& info) {
  switch (info.param) {
    case Way::kStreamWrites:
      return "StreamWrites";
    case Way::kKernelWrites:
      return "KernelWrites";
    default:
      return "Event";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SignalTest,
                         testing::Values(Way::kStreamWrites, Way::kKernelWrites,
                                         Way::kEvent),
                         NameOf);

class EventTest : public ConformanceTest {};

TEST_F(EventTest, IsDoneAfterSynchronize) {
  const CUevent event = device().NewEvent();
  EXPECT_EQ(cuda().cuEventQuery(event), CUDA_SUCCESS);  // never recorded
  Occupy(stream());
  EXPECT_EQ(cuda().cuEventRecord(event, stream()), CUDA_SUCCESS);
  const CUresult early = cuda().cuEventQuery(event);
  EXPECT_TRUE(early == CUDA_SUCCESS || early == CUDA_ERROR_NOT_READY) << early;
  EXPECT_EQ(cuda().cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventDestroy(event), CUDA_SUCCESS);
  FreeOccupied();
}

TEST_F(EventTest, OrdersTwoStreams) {
  const CUstream other = device().NewStream();
  const CUevent event = device().NewEvent();
  const CUdeviceptr memory = device().Alloc(3 * kSignalBytes);
  device().Fill(memory, kSignalBytes, 7);
  device().Fill(memory + kSignalBytes, 2 * kSignalBytes, 0);
  Occupy(stream());
  cuda().cuMemcpyAsync(memory + kSignalBytes, memory, kSignalBytes, stream());
  EXPECT_EQ(cuda().cuEventRecord(event, stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  cuda().cuMemcpyAsync(memory + 2 * kSignalBytes, memory + kSignalBytes,
                       kSignalBytes, other);
  device().Synchronize(other);
  EXPECT_TRUE(
      AreAll(device().Download(memory + 2 * kSignalBytes, kSignalBytes), 7));
  EXPECT_EQ(cuda().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamDestroy(other), CUDA_SUCCESS);
  device().Free(memory);
  FreeOccupied();
}

TEST_F(EventTest, MeasuresTime) {
  const CUevent begin = device().NewEvent(0), end = device().NewEvent(0);
  float milliseconds = -1;
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, end),
            CUDA_ERROR_INVALID_HANDLE);  // not recorded
  const uint64_t before = NowNanoseconds();
  EXPECT_EQ(cuda().cuEventRecord(begin, stream()), CUDA_SUCCESS);
  Occupy(stream());
  EXPECT_EQ(cuda().cuEventRecord(end, stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventSynchronize(end), CUDA_SUCCESS);
  const uint64_t wall = NowNanoseconds() - before;
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0.0f);
  EXPECT_LE(milliseconds, static_cast<double>(wall) / 1e6 + 0.1);
  cuda().cuEventDestroy(begin);
  cuda().cuEventDestroy(end);
  FreeOccupied();
}

}  // namespace
}  // namespace maypole::cuda
