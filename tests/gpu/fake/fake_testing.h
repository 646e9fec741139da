// FakeTest: a test on the fake libcuda.so.1, which it opens as the product
// opens the driver.
//
// Purpose: tests call the fake through the Driver that LoadDriver() has filled.
//
//   class StreamTest : public FakeTest {};
//   TEST_F(StreamTest, Copies) {
//     const CUdeviceptr memory = Alloc(64);
//     EXPECT_EQ(cuda().cuMemcpyAsync(memory, address, 64, stream()), 0);
//   }
//
// Thread contract: the fixture makes device 0's context current to the test's
// thread; other threads begin with a ContextScope.
//
// Invariants: a test ends without pending work.
#ifndef MAYPOLE_TESTS_GPU_FAKE_FAKE_TESTING_H_
#define MAYPOLE_TESTS_GPU_FAKE_FAKE_TESTING_H_

#include <cstddef>

#include "common/gpu/driver.h"
#include "gtest/gtest.h"

namespace maypole::cuda::fake {

// What the product does not call.
struct TestCalls {
  CUresult (*cuStreamBeginCapture_v2)(CUstream stream,
                                      CUstreamCaptureMode mode);
  CUresult (*cuStreamEndCapture)(CUstream stream, void** graph);
  CUresult (*cuMemcpyHtoD_v2)(CUdeviceptr to, const void* from, size_t bytes);
  CUresult (*cuMemcpyDtoH_v2)(void* to, CUdeviceptr from, size_t bytes);
  CUresult (*cuMemsetD8_v2)(CUdeviceptr to, unsigned char value, size_t bytes);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxSetCurrent)(CUcontext context);
  CUresult (*cuCtxSynchronize)();
  void* (*fakeCudaHostView)(CUdeviceptr address);
};

const Driver& cuda();
const TestCalls& more();

class ContextScope {
 public:
  explicit ContextScope(CUcontext context) { cuda().cuCtxPushCurrent(context); }
  ~ContextScope() { cuda().cuCtxPopCurrent(nullptr); }
};

class FakeTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }  // does not block
  CUdeviceptr Alloc(size_t bytes);
  CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING);
  CUevent NewEvent(unsigned flags = CU_EVENT_DISABLE_TIMING);
  CUfunction Kernel(const char* name);
  // The stream goes on after the next Release(). At most kMostHolds in a test.
  void Hold(CUstream stream);
  void Release();
  // Has the stream do work that takes at least this long.
  void Delay(CUstream stream, unsigned milliseconds);

 private:
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  static constexpr size_t kMostHolds = 64;
  uint64_t* released_ = nullptr;  // a flag of each Hold(), in pinned memory
  size_t holds_ = 0;
};

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_FAKE_TESTING_H_
