// What a stream capture forbids, to which threads, and what it does not
// execute.
#include <thread>

#include "gtest/gtest.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole::cuda::fake {
namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

class CaptureTest : public FakeTest {
 protected:
  CUstreamCaptureStatus Status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuda().cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status;
  }
  void Begin(CUstream stream, CUstreamCaptureMode mode) {
    ASSERT_EQ(more().cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
  }
  CUresult End(CUstream stream) {
    void* graph = this;
    return more().cuStreamEndCapture(stream, &graph);
  }
  // What another thread, in this mode, is told by a query of an event.
  CUresult QueryElsewhere(CUstreamCaptureMode mode) {
    const CUevent event = NewEvent();
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      const ContextScope scope(context());
      EXPECT_EQ(cuda().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(mode, kGlobal);
      result = cuda().cuEventQuery(event);
    }).join();
    return result;
  }
};

TEST_F(CaptureTest, DoesNotExecute) {
  const CUdeviceptr memory = Alloc(8);
  ASSERT_EQ(more().cuMemsetD8_v2(memory, 1, 8), CUDA_SUCCESS);
  Begin(stream(), kRelaxed);
  EXPECT_EQ(Status(stream()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuda().cuStreamWriteValue64(stream(), memory, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(End(stream()), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream()), CU_STREAM_CAPTURE_STATUS_NONE);
  uint64_t value = 0;
  EXPECT_EQ(more().cuMemcpyDtoH_v2(&value, memory, 8), CUDA_SUCCESS);
  EXPECT_EQ(value, 0x0101010101010101u);
}

TEST_F(CaptureTest, AnEventTakesAnotherStreamAlong) {
  const CUstream other = NewStream();
  const CUevent event = NewEvent();
  Begin(stream(), kRelaxed);
  EXPECT_EQ(cuda().cuEventRecord(event, stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(stream()), CUDA_SUCCESS);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(CaptureTest, AStreamThatEndsEndsItsCapture) {
  const CUstream origin = NewStream();
  const CUevent event = NewEvent();
  Begin(origin, kGlobal);
  EXPECT_EQ(cuda().cuEventRecord(event, origin), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamDestroy(origin), CUDA_SUCCESS);
  EXPECT_EQ(Status(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cuda().cuStreamSynchronize(stream()), CUDA_SUCCESS);
}

TEST_F(CaptureTest, UnsafeCallsInvalidateAGlobalCapture) {
  Begin(stream(), kGlobal);
  EXPECT_EQ(QueryElsewhere(kThreadLocal), CUDA_SUCCESS);
  EXPECT_EQ(QueryElsewhere(kRelaxed), CUDA_SUCCESS);
  EXPECT_EQ(Status(stream()), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(QueryElsewhere(kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(Status(stream()), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuda().cuEventRecord(NewEvent(), stream()),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(stream()), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, AThreadLocalCaptureForbidsItsThreadOnly) {
  Begin(stream(), kThreadLocal);
  EXPECT_EQ(QueryElsewhere(kGlobal), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuda().cuMemAlloc(&memory, 8),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(stream()), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheOwnStreamCannotBeQueried) {
  Begin(stream(), kRelaxed);
  EXPECT_EQ(cuda().cuStreamQuery(stream()),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(stream()), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheLegacyStreamCannotBeUsedBesideABlockingOne) {
  const CUstream blocking = NewStream(0);
  Begin(blocking, kGlobal);
  CUstreamCaptureStatus status;
  EXPECT_EQ(cuda().cuStreamIsCapturing(nullptr, &status),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(Status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuda().cuEventRecord(NewEvent(), nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(End(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheLegacyStreamCannotCapture) {
  EXPECT_EQ(more().cuStreamBeginCapture_v2(nullptr, kRelaxed),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

}  // namespace
}  // namespace maypole::cuda::fake
