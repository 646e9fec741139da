// Host memory that the GPU accesses, what the driver reports about addresses,
// and the context that all users of a GPU share.
#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {
namespace {

constexpr size_t kHostBytes = 1 << 20;

class MemoryTest : public ConformanceTest {
 protected:
  unsigned TypeOf(CUdeviceptr address, int* ordinal = nullptr) {
    unsigned type = 0;
    int found = -1;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* values[] = {&type, &found};
    EXPECT_EQ(cuda().cuPointerGetAttributes(2, names, values, address),
              CUDA_SUCCESS);
    if (ordinal != nullptr) *ordinal = found;
    return type;
  }
  // The GPU writes the byte to the host's memory, and reads it from there.
  void CopyBothWays(std::byte* host, unsigned char value) {
    const CUdeviceptr memory = device().Alloc(2 * kHostBytes);
    device().Fill(memory, kHostBytes, value);
    cuda().cuMemcpyAsync(AddressOf(host), memory, kHostBytes, stream());
    cuda().cuMemcpyAsync(memory + kHostBytes, AddressOf(host), kHostBytes,
                         stream());
    device().Synchronize();
    EXPECT_TRUE(AreAll(host, kHostBytes, value));
    EXPECT_TRUE(
        AreAll(device().Download(memory + kHostBytes, kHostBytes), value));
    device().Free(memory);
  }
};

TEST_F(MemoryTest, CopiesToAndFromPinnedMemory) {
  const PinnedMemory pinned(device(), kHostBytes);
  CopyBothWays(pinned.data(), 3);
}

TEST_F(MemoryTest, CopiesToAndFromRegisteredSharedPages) {
  const SharedPages pages(kHostBytes);
  const Registered registered(device(), pages, Registered::kForCopies);
  CopyBothWays(pages.data(), 4);
}

TEST_F(MemoryTest, AnotherProcessSeesWhatTheGpuCopied) {
  const SharedPages pages(kHostBytes);
  const Registered registered(device(), pages);
  CopyBothWays(pages.data(), 5);
  Peer peer;
  EXPECT_EQ(peer.Ask({Request::kCountPages, 5, kHostBytes}, pages.fd()).number,
            kHostBytes);
}

TEST_F(MemoryTest, AnotherProcessSeesWordsThatAStreamWrites) {
  if (!device().gpu().writes_values()) {
    GTEST_SKIP() << "the device's streams cannot write 64-bit words";
  }
  constexpr uint32_t kWords = 50;
  const SharedPages pages(kHostBytes);
  const Registered registered(device(), pages);
  Peer peer;
  peer.Start({Request::kSeeWords, kWords, kHostBytes}, pages.fd());
  for (uint64_t value = 1; value <= kWords; ++value) {
    ASSERT_EQ(cuda().cuStreamWriteValue64(stream(), registered.address(), value,
                                          CU_STREAM_WRITE_VALUE_DEFAULT),
              CUDA_SUCCESS);
    AwaitWord(pages.word(Request::kSeen), value);
  }
  EXPECT_STREQ(peer.Finish().error, "");
}

TEST_F(MemoryTest, PagesAreUsableAfterUnregister) {
  const SharedPages pages(kHostBytes);
  for (const unsigned char value : {6, 7, 8}) {
    {
      const Registered registered(device(), pages);
      EXPECT_EQ(cuda().cuMemHostRegister(pages.data(), kHostBytes, 0),
                CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
      CopyBothWays(pages.data(), value);
    }
    EXPECT_EQ(cuda().cuMemHostUnregister(pages.data()),
              CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EXPECT_TRUE(AreAll(pages.data(), kHostBytes, value));
    std::fill_n(pages.data(), kHostBytes, std::byte{0});
    CopyBothWays(pages.data(), value);  // as pageable memory
  }
}

TEST_F(MemoryTest, SaysWhatDeviceMemoryIs) {
  const CUdeviceptr memory = device().Alloc(kHostBytes);
  int ordinal = -1;
  EXPECT_EQ(TypeOf(memory + 5, &ordinal), unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(ordinal, device().gpu().ordinal());
  const Gpu* found = nullptr;
  EXPECT_TRUE(Gpu::OfAddress(cuda(), memory, &found).ok());
  EXPECT_EQ(found, &device().gpu());
  CUdeviceptr start = 0;
  size_t bytes = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&start, &bytes};
  EXPECT_EQ(cuda().cuPointerGetAttributes(2, names, values, memory + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(start, memory);
  EXPECT_EQ(bytes, kHostBytes);
  device().Free(memory);
}

TEST_F(MemoryTest, SaysWhatHostMemoryIs) {
  const PinnedMemory pinned(device(), kHostBytes);
  EXPECT_EQ(TypeOf(AddressOf(pinned.data())), unsigned{CU_MEMORYTYPE_HOST});
  const SharedPages pages(kHostBytes);
  {
    const Registered registered(device(), pages);
    EXPECT_EQ(TypeOf(AddressOf(pages.data()) + 9),
              unsigned{CU_MEMORYTYPE_HOST});
  }
  int unknown = 0;
  for (const void* address : {static_cast<const void*>(pages.data()),
                              static_cast<const void*>(&unknown)}) {
    EXPECT_NE(TypeOf(AddressOf(address)), unsigned{CU_MEMORYTYPE_DEVICE});
    const Gpu* found = nullptr;
    EXPECT_FALSE(Gpu::OfAddress(cuda(), AddressOf(address), &found).ok());
  }
}

// As a framework in the same process is one.
TEST_F(MemoryTest, ASecondUserHasTheSameContext) {
  CUcontext second = nullptr;
  const CUdevice number = device().gpu().number();
  ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&second, number), CUDA_SUCCESS);
  EXPECT_EQ(second, device().gpu().context());
  const CUdeviceptr memory = device().Alloc(64);
  RunInThread([&] {
    Device own(cuda());
    own.Fill(memory, 64, 9);
    CUcontext of_stream = nullptr;
    EXPECT_EQ(cuda().cuStreamGetCtx(stream(), &of_stream), CUDA_SUCCESS);
    EXPECT_EQ(of_stream, second);
  });
  EXPECT_EQ(cuda().cuDevicePrimaryCtxRelease(number), CUDA_SUCCESS);
  EXPECT_TRUE(AreAll(device().Download(memory, 64), 9));
  device().Free(memory);
}

}  // namespace
}  // namespace maypole::cuda
