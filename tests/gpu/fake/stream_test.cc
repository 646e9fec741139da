// Streams, events, copies, contexts, kernels: what runs when, and which bytes
// it leaves. Runs without delays and with a seed.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole::cuda::fake {
namespace {

CUdeviceptr Address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

class StreamTest : public FakeTest {
 protected:
  void Fill(CUdeviceptr memory, uint64_t count, uint32_t value,
            CUstream stream) {
    void* arguments[] = {&memory, &count, &value};
    EXPECT_EQ(cuda().cuLaunchKernel(Kernel("fake_fill"), 1, 1, 1, 32, 1, 1, 0,
                                    stream, arguments, nullptr),
              CUDA_SUCCESS);
  }
  uint32_t Read(CUdeviceptr memory) {
    uint32_t value = 0;
    EXPECT_EQ(more().cuMemcpyDtoH_v2(&value, memory, sizeof(value)),
              CUDA_SUCCESS);
    return value;
  }
};

TEST_F(StreamTest, CopiesThroughTheDevice) {
  std::vector<char> from(100'000, 'x'), to(100'000);
  const CUdeviceptr a = Alloc(100'000), b = Alloc(100'000);
  EXPECT_EQ(cuda().cuMemcpyAsync(a, Address(from.data()), 100'000, stream()),
            CUDA_SUCCESS);
  std::fill(from.begin(), from.end(), 'y');  // it was read at once
  EXPECT_EQ(cuda().cuMemcpyAsync(b, a, 100'000, stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemcpyAsync(Address(to.data()), b, 100'000, stream()),
            CUDA_SUCCESS);
  EXPECT_EQ(to, std::vector<char>(100'000, 'x'));  // it is written at once
}

TEST_F(StreamTest, RejectsCopiesThatLeaveTheAllocation) {
  char host[64] = {};
  const CUdeviceptr memory = Alloc(64);
  EXPECT_EQ(cuda().cuMemcpyAsync(memory + 1, Address(host), 64, stream()),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemcpyAsync(memory, Address(host), 1, stream()),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamTest, WritesPinnedMemoryLater) {
  void* host = nullptr;
  ASSERT_EQ(cuda().cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_PORTABLE),
            CUDA_SUCCESS);
  auto& value = *static_cast<uint32_t*>(host);
  value = 1;
  const CUdeviceptr memory = Alloc(64);
  Hold(stream());
  Fill(memory, 1, 7, stream());
  EXPECT_EQ(cuda().cuMemcpyAsync(Address(host), memory, 4, stream()),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(value, 1u);
  Release();
  EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_SUCCESS);
  EXPECT_EQ(value, 7u);
  EXPECT_EQ(cuda().cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(StreamTest, EventsOrderStreams) {
  const CUdeviceptr memory = Alloc(64);
  const CUstream other = NewStream();
  const CUevent event = NewEvent();
  Hold(stream());
  Fill(memory, 1, 1, stream());
  EXPECT_EQ(cuda().cuEventRecord(event, stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  Fill(memory, 1, 2, other);
  EXPECT_EQ(cuda().cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda().cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuda().cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(Read(memory), 2u);
}

TEST_F(StreamTest, ASeedMakesUnorderedStreamsRunInAnyOrder) {
  const std::string config = std::getenv("MAYPOLE_FAKE_CUDA");
  if (config.find("seed=0") != config.npos) {
    GTEST_SKIP() << "no seed; the tests with one run it";
  }
  const CUdeviceptr memory = Alloc(64);
  const CUstream other = NewStream();
  std::set<uint64_t> last;
  for (int i = 0; i < 40; ++i) {
    cuda().cuStreamWriteValue64(stream(), memory, 1, 0);
    cuda().cuStreamWriteValue64(other, memory, 2, 0);
    EXPECT_EQ(more().cuCtxSynchronize(), CUDA_SUCCESS);
    last.insert(Read(memory));
  }
  EXPECT_EQ(last, (std::set<uint64_t>{1, 2}));
}

TEST_F(StreamTest, ThreadsUseADeviceTogether) {
  const auto work = [&](char letter) {
    const ContextScope scope(context());
    const CUstream own = NewStream(letter % 2);
    const CUevent event = NewEvent();
    std::vector<char> to(5000);
    for (int i = 0; i < 30; ++i) {
      const CUdeviceptr memory = Alloc(5000);
      const std::vector<char> from(5000, static_cast<char>(letter + i));
      cuda().cuMemcpyAsync(memory, Address(from.data()), 5000, own);
      cuda().cuEventRecord(event, own);
      while (cuda().cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      }
      cuda().cuMemcpyAsync(Address(to.data()), memory, 5000, own);
      EXPECT_EQ(to, from);
      EXPECT_EQ(cuda().cuMemFree(memory), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuda().cuEventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuStreamDestroy(own), CUDA_SUCCESS);
  };
  std::thread a(work, 'a'), b(work, 'B'), c(work, '0');
  a.join();
  b.join();
  c.join();
}

TEST_F(StreamTest, EventsThatAreNotRecordedAreDone) {
  const CUevent event = NewEvent();
  EXPECT_EQ(cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamWaitEvent(stream(), event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamTest, MeasuresTime) {
  const CUevent begin = NewEvent(0), end = NewEvent(0), plain = NewEvent();
  float milliseconds = 0;
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, end),
            CUDA_ERROR_INVALID_HANDLE);  // not recorded
  cuda().cuEventRecord(begin, stream());
  cuda().cuEventRecord(plain, stream());
  Hold(stream());
  Delay(stream(), 20);
  cuda().cuEventRecord(end, stream());
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, end),
            CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuda().cuEventSynchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 20.0f);
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, begin, plain),
            CUDA_ERROR_INVALID_HANDLE);  // without a time
}

TEST_F(StreamTest, LegacyAndBlockingStreamsWaitForEachOther) {
  const CUdeviceptr memory = Alloc(64);
  const CUstream blocking = NewStream(0);
  Hold(blocking);
  Fill(memory, 1, 1, blocking);
  Fill(memory, 1, 2, nullptr);
  Delay(nullptr, 20);
  Fill(memory, 1, 3, CU_STREAM_LEGACY);
  Fill(memory, 1, 4, CU_STREAM_PER_THREAD);
  EXPECT_EQ(cuda().cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuda().cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  EXPECT_EQ(Read(memory), 4u);
}

// A kernel may wait for a flag that another stream writes.
TEST_F(StreamTest, OtherStreamsDoNotWaitForTheLegacyStream) {
  Hold(nullptr);
  Delay(stream(), 1);
  EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  Release();
}

TEST_F(StreamTest, AFlagFollowsWhatWasWrittenBefore) {
  void* host = nullptr;
  ASSERT_EQ(cuda().cuMemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
  auto& flag = *static_cast<uint64_t*>(host);
  auto* const data = static_cast<char*>(host) + 1024;
  const CUdeviceptr memory = Alloc(1024);
  ASSERT_EQ(more().cuMemsetD8_v2(memory, 'z', 1024), CUDA_SUCCESS);
  ASSERT_EQ(cuda().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  cuda().cuMemcpyAsync(Address(data), memory, 1024, stream());
  EXPECT_EQ(cuda().cuStreamWriteValue64(stream(), Address(host), 9, 0),
            CUDA_SUCCESS);
  while (std::atomic_ref(flag).load(std::memory_order_acquire) != 9) {
    std::this_thread::yield();
  }
  EXPECT_EQ(data[0], 'z');
  EXPECT_EQ(data[1023], 'z');
  EXPECT_EQ(cuda().cuStreamWriteValue64(stream(), Address(host) + 4, 9, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(StreamTest, RunsKernelsWithTheArgumentsOfTheLaunch) {
  std::vector<float> values = {1, 2, 3, 4};
  CUdeviceptr memory = Alloc(16);
  more().cuMemcpyHtoD_v2(memory, values.data(), 16);
  uint64_t count = 3;
  void* arguments[] = {&memory, &count};
  const CUfunction function = Kernel("fake_add_one");
  Delay(stream(), 10);
  EXPECT_EQ(cuda().cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream(),
                                  arguments, nullptr),
            CUDA_SUCCESS);
  count = 0;
  EXPECT_EQ(cuda().cuLaunchKernel(function, 0, 1, 1, 64, 1, 1, 0, stream(),
                                  arguments, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemcpyAsync(Address(values.data()), memory, 16, stream()),
            CUDA_SUCCESS);
  EXPECT_EQ(values, (std::vector<float>{2, 3, 4, 4}));
}

TEST_F(StreamTest, LoadsOnlyImages) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(cuda().cuModuleLoadData(&module, "nothing"),
            CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuda().cuModuleLoadData(&module,
                                    "\x7f"
                                    "ELF"),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuModuleGetFunction(&function, module, "unknown"),
            CUDA_ERROR_NOT_FOUND);
}

TEST_F(StreamTest, WorkContinuesAfterTheStreamIsDestroyed) {
  const CUdeviceptr memory = Alloc(64);
  const CUstream other = NewStream();
  Delay(other, 20);
  Fill(memory, 1, 5, other);
  const CUevent event = NewEvent();
  cuda().cuEventRecord(event, other);
  EXPECT_EQ(cuda().cuStreamDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(other), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda().cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(Read(memory), 5u);
}

TEST_F(StreamTest, FreeWaitsForPendingWork) {
  const CUdeviceptr memory = Alloc(64);
  Delay(stream(), 20);
  Fill(memory, 1, 5, stream());
  EXPECT_EQ(cuda().cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_SUCCESS);
}

TEST_F(StreamTest, NeedsAContext) {
  CUdeviceptr memory = 0;
  std::thread([&] {
    EXPECT_EQ(cuda().cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda().cuCtxPopCurrent(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext found = nullptr;
    EXPECT_EQ(cuda().cuStreamGetCtx(nullptr, &found),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda().cuStreamGetCtx(stream(), &found), CUDA_SUCCESS);
    EXPECT_EQ(found, context());
    const ContextScope scope(context());
    EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_SUCCESS);
  }).join();
}

TEST_F(StreamTest, RejectsHandlesOfAnotherContext) {
  CUcontext second = nullptr, found = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  const CUevent event = NewEvent();
  {
    const ContextScope scope(second);
    EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuda().cuEventRecord(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuda().cuStreamGetCtx(stream(), &found), CUDA_SUCCESS);
    EXPECT_EQ(found, context());
    EXPECT_EQ(more().cuCtxGetCurrent(&found), CUDA_SUCCESS);
    EXPECT_EQ(found, second);
  }
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(StreamTest, StreamsOfDevicesWaitForEachOther) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  const CUdeviceptr memory = Alloc(64);
  const CUevent event = NewEvent();
  Delay(stream(), 20);
  Fill(memory, 1, 1, stream());
  cuda().cuEventRecord(event, stream());
  {
    const ContextScope scope(second);
    const CUstream other = NewStream();
    EXPECT_EQ(cuda().cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
    Fill(memory, 1, 2, other);
    EXPECT_EQ(cuda().cuStreamSynchronize(other), CUDA_SUCCESS);
  }
  EXPECT_EQ(Read(memory), 2u);
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(StreamTest, AChildAfterForkHasNoDriver) {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const bool refused =
        cuda().cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
        cuda().cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(StreamTest, ExitDropsPendingWork) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        for (int i = 0; i < 50; ++i) Delay(stream(), 100);
        std::exit(3);
      },
      testing::ExitedWithCode(3), "");
}

TEST_F(StreamTest, ExitDoesNotWaitForAKernelThatDoesNotEnd) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Hold(stream());
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        std::exit(3);  // while the kernel runs
      },
      testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace maypole::cuda::fake
