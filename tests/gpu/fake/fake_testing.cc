#include "tests/gpu/fake/fake_testing.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace maypole::cuda::fake {
namespace {

constexpr char kLibrary[] = "tests/gpu/fake/libcuda.so.1";  // of the runfiles
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

// The dynamic linker finds the library that is open already by its SONAME,
// libcuda.so.1, when the product opens that.
const Driver* LoadFake() {
  Library();
  const Driver* driver = nullptr;
  if (const Status s = LoadDriver(&driver); !s.ok()) {
    std::fprintf(stderr, "%s\n", s.message().c_str());
    std::abort();
  }
  return driver;
}

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
  static const Driver* const driver = LoadFake();
  return *driver;
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
  void* flags = nullptr;
  ASSERT_EQ(cuda().cuMemHostAlloc(&flags, kMostHolds * sizeof(*released_), 0),
            CUDA_SUCCESS);
  released_ = static_cast<uint64_t*>(flags);
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
  ASSERT_LT(holds_, kMostHolds);
  Launch(Kernel("fake_wait"), stream,
         reinterpret_cast<CUdeviceptr>(&released_[holds_++]));
}

void FakeTest::Release() {
  for (size_t i = 0; i < holds_; ++i) {
    std::atomic_ref(released_[i]).store(1);
  }
}

void FakeTest::Delay(CUstream stream, unsigned milliseconds) {
  Launch(Kernel("fake_delay"), stream, uint64_t{milliseconds} * 1'000'000);
}

}  // namespace maypole::cuda::fake
