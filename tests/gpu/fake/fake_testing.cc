#include "tests/gpu/fake/fake_testing.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace maypole::cuda::fake {
namespace {

constexpr char kLibrary[] = "tests/gpu/fake/libcuda.so.1";  // of the runfiles
constexpr int kVersion = 12000;
constexpr char kImage[] = "// a comment\n.version 8.0\n";

void* Library() {
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

template <typename Function>
void Symbol(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(Library(), name));
  if (function == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    std::abort();
  }
}

template <typename Function>
void Get(const char* name, Function& function) {
  CUresult (*get)(const char*, void**, int, uint64_t,
                  CUdriverProcAddressQueryResult*);
  Symbol("cuGetProcAddress_v2", get);
  void* pointer = nullptr;
  CUdriverProcAddressQueryResult status;
  if (get(name, &pointer, kVersion, CU_GET_PROC_ADDRESS_DEFAULT, &status) !=
          CUDA_SUCCESS ||
      status != CU_GET_PROC_ADDRESS_SUCCESS || pointer == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    std::abort();
  }
  function = reinterpret_cast<Function>(pointer);
}

#define GET(name) Get(#name, driver.name)

Driver LoadAll() {
  Driver driver;
  GET(cuInit);
  GET(cuDriverGetVersion);
  GET(cuGetErrorName);
  GET(cuGetErrorString);
  GET(cuDeviceGetCount);
  GET(cuDeviceGet);
  GET(cuDeviceGetName);
  GET(cuDeviceGetUuid);
  GET(cuDeviceGetAttribute);
  GET(cuDeviceCanAccessPeer);
  GET(cuDevicePrimaryCtxRetain);
  GET(cuDevicePrimaryCtxRelease);
  GET(cuCtxPushCurrent);
  GET(cuCtxPopCurrent);
  GET(cuThreadExchangeStreamCaptureMode);
  GET(cuMemGetInfo);
  GET(cuPointerGetAttributes);
  GET(cuMemAlloc);
  GET(cuMemFree);
  GET(cuMemHostAlloc);
  GET(cuMemFreeHost);
  GET(cuMemHostRegister);
  GET(cuMemHostUnregister);
  GET(cuMemHostGetDevicePointer);
  GET(cuIpcGetMemHandle);
  GET(cuIpcOpenMemHandle);
  GET(cuIpcCloseMemHandle);
  GET(cuMemGetAllocationGranularity);
  GET(cuMemCreate);
  GET(cuMemRelease);
  GET(cuMemAddressReserve);
  GET(cuMemAddressFree);
  GET(cuMemMap);
  GET(cuMemUnmap);
  GET(cuMemSetAccess);
  GET(cuMemExportToShareableHandle);
  GET(cuMemImportFromShareableHandle);
  GET(cuStreamCreate);
  GET(cuStreamDestroy);
  GET(cuStreamQuery);
  GET(cuStreamSynchronize);
  GET(cuStreamWaitEvent);
  GET(cuStreamGetCtx);
  GET(cuStreamIsCapturing);
  GET(cuStreamWriteValue64);
  GET(cuMemcpyAsync);
  GET(cuEventCreate);
  GET(cuEventDestroy);
  GET(cuEventRecord);
  GET(cuEventQuery);
  GET(cuEventSynchronize);
  GET(cuEventElapsedTime);
  GET(cuModuleLoadData);
  GET(cuModuleGetFunction);
  GET(cuLaunchKernel);
  return driver;
}
#undef GET

#define SYMBOL(name) Symbol(#name, calls.name)

TestCalls LoadMore() {
  TestCalls calls;
  SYMBOL(cuStreamBeginCapture_v2);
  SYMBOL(cuStreamEndCapture);
  SYMBOL(cuMemcpyHtoD_v2);
  SYMBOL(cuMemcpyDtoH_v2);
  SYMBOL(cuMemsetD8_v2);
  SYMBOL(cuCtxGetCurrent);
  SYMBOL(cuCtxSetCurrent);
  SYMBOL(cuCtxSynchronize);
  SYMBOL(fakeCudaHostView);
  return calls;
}
#undef SYMBOL

void Launch(CUfunction function, CUstream stream, uint64_t argument) {
  void* arguments[] = {&argument};
  EXPECT_EQ(cuda().cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream,
                                  arguments, nullptr),
            CUDA_SUCCESS);
}

}  // namespace

const Driver& cuda() {
  static const Driver driver = LoadAll();
  return driver;
}

const TestCalls& more() {
  static const TestCalls calls = LoadMore();
  return calls;
}

void FakeTest::SetUp() {
  ASSERT_EQ(cuda().cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda().cuCtxPushCurrent(context_), CUDA_SUCCESS);
  stream_ = NewStream();
  ASSERT_EQ(cuda().cuMemHostAlloc(&released_, sizeof(uint64_t), 0),
            CUDA_SUCCESS);
}

void FakeTest::TearDown() {
  EXPECT_EQ(cuda().cuMemFreeHost(released_), CUDA_SUCCESS);
  more().cuCtxSynchronize();
  cuda().cuCtxPopCurrent(nullptr);
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

CUdeviceptr FakeTest::Alloc(size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda().cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return address;
}

CUstream FakeTest::NewStream(unsigned flags) {
  CUstream stream = nullptr;
  EXPECT_EQ(cuda().cuStreamCreate(&stream, flags), CUDA_SUCCESS);
  return stream;
}

CUevent FakeTest::NewEvent(unsigned flags) {
  CUevent event = nullptr;
  EXPECT_EQ(cuda().cuEventCreate(&event, flags), CUDA_SUCCESS);
  return event;
}

CUfunction FakeTest::Kernel(const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(cuda().cuModuleLoadData(&module, kImage), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

void FakeTest::Hold(CUstream stream) {
  Launch(Kernel("fake_wait"), stream, reinterpret_cast<CUdeviceptr>(released_));
}

void FakeTest::Release() {
  std::atomic_ref(*static_cast<uint64_t*>(released_)).store(1);
}

void FakeTest::Delay(CUstream stream, unsigned milliseconds) {
  Launch(Kernel("fake_delay"), stream, uint64_t{milliseconds} * 1'000'000);
}

}  // namespace maypole::cuda::fake
