// Memory of the device and of the host: limits, attributes, access, sharing
// within a process, and what ends the process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "common/gpu/kernels/kernels.h"
#include "gtest/gtest.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole::cuda::fake {
namespace {

constexpr size_t kTwoMegabytes = 2 << 20;

CUdeviceptr Address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

struct Attributes {
  unsigned type = 99;
  bool managed = true;
  int device = 99;
  CUdeviceptr start = 99;
  size_t bytes = 99;
};

Attributes Get(CUdeviceptr address) {
  Attributes got;
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&got.type, &got.managed, &got.device, &got.start,
                    &got.bytes};
  EXPECT_EQ(cuda().cuPointerGetAttributes(5, names, values, address),
            CUDA_SUCCESS);
  EXPECT_FALSE(got.managed);
  return got;
}

class MemoryTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
  size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda().cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, size_t{64} << 20);
    return free;
  }
  CUmemGenericAllocationHandle Create(size_t bytes = kTwoMegabytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda().cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  void SetAccess(CUdeviceptr address, size_t bytes) {
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(cuda().cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  }
  CUdeviceptr Reserve(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda().cuMemAddressReserve(&address, bytes, 0, 0, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(address % kTwoMegabytes, 0u);
    return address;
  }
};

TEST_F(MemoryTest, CountsWhatIsUsed) {
  const size_t before = FreeBytes();
  const CUdeviceptr memory = Alloc(10'000);
  EXPECT_EQ(before - FreeBytes(), 12'288u);
  CUdeviceptr other = 0;
  EXPECT_EQ(cuda().cuMemAlloc(&other, 64 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda().cuMemFree(memory + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, TheContextsEndFreesItsMemory) {
  const size_t before = FreeBytes();
  CUcontext second = nullptr;
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  {
    const ContextScope scope(second);
    Alloc(4096);
    EXPECT_EQ(FreeBytes(), (64u << 20) - 4096);
  }
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  {
    const ContextScope scope(second);
    EXPECT_EQ(FreeBytes(), 64u << 20);
  }
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, TheHostCannotAccessDeviceMemory) {
  const CUdeviceptr memory = Alloc(64);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(memory) = 1, "");
  auto* const view =
      static_cast<unsigned char*>(more().fakeCudaHostView(memory));
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view[63], 0xA5);  // new memory is not zero
  view[63] = 8;
  char copy = 0;
  EXPECT_EQ(more().cuMemcpyDtoH_v2(&copy, memory + 63, 1), CUDA_SUCCESS);
  EXPECT_EQ(copy, 8);
  EXPECT_EQ(more().fakeCudaHostView(memory + 64), nullptr);
}

TEST_F(MemoryTest, SaysWhatAnAddressIs) {
  const CUdeviceptr memory = Alloc(64);
  const Attributes device = Get(memory + 5);
  EXPECT_EQ(device.type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(device.device, 0);
  EXPECT_EQ(device.start, memory);
  EXPECT_EQ(device.bytes, 64u);
  int local = 0;
  const Attributes unknown = Get(Address(&local));
  EXPECT_EQ(unknown.type, 0u);
  EXPECT_EQ(unknown.start, 0u);
  EXPECT_EQ(unknown.bytes, 0u);
}

TEST_F(MemoryTest, RegistersHostMemory) {
  std::vector<char> host(10'000);
  char* const start = host.data() + 3;  // no alignment is needed
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda().cuMemHostGetDevicePointer(&address, start, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemHostRegister(start, 5000, CU_MEMHOSTREGISTER_PORTABLE),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemHostRegister(start + 4999, 5, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda().cuMemHostRegister(start - 1, 5, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda().cuMemHostRegister(start + 5000, 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemHostGetDevicePointer(&address, start, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, Address(start));
  EXPECT_EQ(Get(address + 1).type, unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(cuda().cuMemHostUnregister(start + 1),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuda().cuMemHostUnregister(start), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemHostUnregister(start + 5000), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemHostUnregister(start),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(MemoryTest, UnregisteringMemoryInUseEndsTheProcess) {
  static char host[64];
  const CUdeviceptr memory = Alloc(64);
  EXPECT_DEATH(
      {
        cuda().cuMemHostRegister(host, sizeof(host), 0);
        Delay(stream(), 1000);
        cuda().cuMemcpyAsync(memory, Address(host), sizeof(host), stream());
        cuda().cuMemHostUnregister(host);
      },
      "fake libcuda: cuMemHostUnregister: pending work uses the memory");
}

// The addresses are in the struct that is the kernel's argument.
TEST_F(MemoryTest, UnregisteringMemoryThatAKernelCopiesEndsTheProcess) {
  static char host[64];
  const CUdeviceptr memory = Alloc(64);
  const CopiedPiece piece = {Address(host), memory, sizeof(host)};
  CopyArguments pieces = MakeCopyArguments({&piece, 1});
  void* arguments[] = {&pieces};
  EXPECT_DEATH(
      {
        cuda().cuMemHostRegister(host, sizeof(host), 0);
        Delay(stream(), 1000);
        cuda().cuLaunchKernel(Kernel(kCopyKernel), 1, 1, 1, 32, 1, 1, 0,
                              stream(), arguments, nullptr);
        cuda().cuMemHostUnregister(host);
      },
      "fake libcuda: cuMemHostUnregister: pending work uses the memory");
}

TEST_F(MemoryTest, WritingAValueToUnknownMemoryEndsTheProcess) {
  static uint64_t host = 0;
  EXPECT_DEATH(cuda().cuStreamWriteValue64(stream(), Address(&host), 1, 0),
               "fake libcuda: cuStreamWriteValue64");
}

TEST_F(MemoryTest, MapsOneMemoryTwice) {
  const size_t before = FreeBytes();
  const auto handle = Create();
  int fd = -1;
  ASSERT_EQ(cuda().cuMemExportToShareableHandle(
                &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(cuda().cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(intptr_t{fd}),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr a = Reserve(kTwoMegabytes), b = Reserve(kTwoMegabytes);
  EXPECT_EQ(cuda().cuMemMap(a, kTwoMegabytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemMap(b, kTwoMegabytes, 0, imported, 0), CUDA_SUCCESS);
  EXPECT_EQ(more().cuMemcpyHtoD_v2(a, "x", 1), CUDA_ERROR_INVALID_VALUE);
  SetAccess(a, kTwoMegabytes);
  SetAccess(b, kTwoMegabytes);
  EXPECT_EQ(more().cuMemcpyHtoD_v2(a + 77, "x", 1), CUDA_SUCCESS);
  char got = 0;
  EXPECT_EQ(more().cuMemcpyDtoH_v2(&got, b + 77, 1), CUDA_SUCCESS);
  EXPECT_EQ(got, 'x');
  EXPECT_EQ(Get(b).type, unsigned{CU_MEMORYTYPE_DEVICE});
  for (const CUdeviceptr address : {a, b}) {
    EXPECT_EQ(cuda().cuMemAddressFree(address, kTwoMegabytes),
              CUDA_ERROR_INVALID_VALUE);  // still mapped
    EXPECT_EQ(cuda().cuMemUnmap(address, kTwoMegabytes), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuMemUnmap(address, kTwoMegabytes),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda().cuMemAddressFree(address, kTwoMegabytes), CUDA_SUCCESS);
  }
  EXPECT_EQ(before - FreeBytes(), kTwoMegabytes);
  EXPECT_EQ(cuda().cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, CopiesAcrossMappingsThatFollowEachOther) {
  const CUdeviceptr start = Reserve(2 * kTwoMegabytes);
  for (const CUdeviceptr at : {start, start + kTwoMegabytes}) {
    const auto handle = Create();
    EXPECT_EQ(cuda().cuMemMap(at, kTwoMegabytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuMemRelease(handle), CUDA_SUCCESS);
  }
  SetAccess(start, 2 * kTwoMegabytes);
  char got[4] = {};
  const CUdeviceptr middle = start + kTwoMegabytes - 2;
  EXPECT_EQ(more().cuMemcpyHtoD_v2(middle, "abcd", 4), CUDA_SUCCESS);
  EXPECT_EQ(more().cuMemcpyDtoH_v2(got, middle, 4), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(got, "abcd", 4), 0);
  EXPECT_EQ(cuda().cuMemUnmap(start, 2 * kTwoMegabytes), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemAddressFree(start, 2 * kTwoMegabytes), CUDA_SUCCESS);
}

TEST_F(MemoryTest, RejectsForgedDescriptors) {
  const auto import = [](int fd) {
    CUmemGenericAllocationHandle handle = 0;
    return cuda().cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(intptr_t{fd}),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  };
  const int forged =
      memfd_create("maypole-fake-gpu-shareable-0", MFD_CLOEXEC);  // unsealed
  ASSERT_EQ(ftruncate(forged, kTwoMegabytes), 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {forged, null, -1, 1 << 20}) {
    EXPECT_EQ(import(fd), CUDA_ERROR_INVALID_VALUE);
  }
  close(forged);
  close(null);
}

TEST_F(MemoryTest, RejectsForgedIpcHandles) {
  const CUdeviceptr memory = Alloc(64);
  CUipcMemHandle handle = {};
  CUdeviceptr opened = 0;
  EXPECT_EQ(cuda().cuIpcOpenMemHandle(&opened, handle, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuIpcOpenMemHandle(&opened, handle, 0),
            CUDA_ERROR_INVALID_CONTEXT);  // by its own process
  EXPECT_EQ(cuda().cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, UnmappingMemoryInUseEndsTheProcess) {
  EXPECT_DEATH(
      {
        const auto handle = Create();
        const CUdeviceptr address = Reserve(kTwoMegabytes);
        cuda().cuMemMap(address, kTwoMegabytes, 0, handle, 0);
        SetAccess(address, kTwoMegabytes);
        Delay(stream(), 1000);
        cuda().cuStreamWriteValue64(stream(), address, 1, 0);
        cuda().cuMemUnmap(address, kTwoMegabytes);
      },
      "fake libcuda: cuMemUnmap: pending work uses the memory");
}

}  // namespace
}  // namespace maypole::cuda::fake
