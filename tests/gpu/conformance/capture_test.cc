// Graphs: how to recognise a stream that is being captured, and which calls do
// not end the capture of another stream.
#include <dlfcn.h>

#include <optional>

#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {
namespace {

class CaptureTest : public ConformanceTest {
 protected:
  // The product begins no capture, so these are not part of Driver.
  void SetUp() override {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    begin_ = reinterpret_cast<decltype(begin_)>(
        dlsym(library, "cuStreamBeginCapture_v2"));
    end_ =
        reinterpret_cast<decltype(end_)>(dlsym(library, "cuStreamEndCapture"));
    ASSERT_NE(begin_, nullptr);
    ASSERT_NE(end_, nullptr);
    captured_ = device().NewStream();
    event_ = device().NewEvent();
  }
  void TearDown() override {
    cuda().cuEventDestroy(event_);
    cuda().cuStreamDestroy(captured_);
    ConformanceTest::TearDown();
  }
  CUstreamCaptureStatus StatusOf(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuda().cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status;
  }
  CUresult End(CUstream stream) {
    void* graph = nullptr;
    return end_(stream, &graph);  // the graph is small, and kept
  }

  CUresult (*begin_)(CUstream stream, CUstreamCaptureMode mode) = nullptr;
  CUresult (*end_)(CUstream stream, void** graph) = nullptr;
  CUstream captured_ = nullptr;
  CUevent event_ = nullptr;
};

TEST_F(CaptureTest, IsRecognised) {
  EXPECT_EQ(StatusOf(captured_), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(begin_(captured_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(StatusOf(captured_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(StatusOf(stream()), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(End(captured_), CUDA_SUCCESS);
  EXPECT_EQ(StatusOf(captured_), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(CaptureTest, ARefusedQueryIsRecognised) {
  ASSERT_EQ(begin_(captured_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamQuery(captured_),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_NE(StatusOf(captured_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(End(captured_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuda().cuStreamQuery(stream()), CUDA_SUCCESS);
}

TEST_F(CaptureTest, TheLegacyStreamTellsOfABlockingCapture) {
  const CUstream blocking = device().NewStream(0);
  ASSERT_EQ(begin_(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(cuda().cuStreamIsCapturing(nullptr, &status),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(End(blocking), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamIsCapturing(nullptr, &status), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamDestroy(blocking), CUDA_SUCCESS);
}

// What Maypole's threads do, by CurrentGpu, while a user captures. They free
// nothing meanwhile.
TEST_F(CaptureTest, RelaxedCallsDoNotEndIt) {
  constexpr size_t kBytes = 4096;
  const SharedPages pages(kBytes);
  std::optional<PinnedMemory> pinned;
  std::optional<Registered> registered;
  const CUdeviceptr memory = device().Alloc(kBytes);
  device().Fill(memory, kBytes, 1);
  ASSERT_EQ(begin_(captured_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  RunInThread([&] {
    const CurrentGpu current(device().gpu());
    pinned.emplace(device(), kBytes);
    registered.emplace(device(), pages);
    EXPECT_EQ(cuda().cuMemcpyAsync(AddressOf(pinned->data()), memory, kBytes,
                                   stream()),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuEventRecord(event_, stream()), CUDA_SUCCESS);
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY) result = cuda().cuEventQuery(event_);
    EXPECT_EQ(result, CUDA_SUCCESS);
    EXPECT_TRUE(AreAll(pinned->data(), kBytes, 1));
  });
  EXPECT_EQ(StatusOf(captured_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(captured_), CUDA_SUCCESS);
  device().Free(memory);
}

}  // namespace
}  // namespace maypole::cuda
