// Device memory of several processes: by descriptors (virtual memory
// management) and by legacy IPC handles; which process may die, and when the
// memory is free.
#include <fcntl.h>

#include <chrono>
#include <thread>

#include "tests/gpu/conformance/conformance.h"

namespace maypole::cuda {
namespace {

constexpr size_t kSharedBytes = 4 << 20;
// For the memory that returns when processes end.
constexpr size_t kManyBytes = 128 << 20;
constexpr size_t kSlack = 64 << 20;
constexpr std::chrono::seconds kReturnTime(10);

class SharingTest : public ConformanceTest {
 protected:
  void SetUp() override {
    static const bool others = OthersCanUse(device());
    if (!others) GTEST_SKIP() << "the device's compute mode allows one process";
  }
  // True if the device soon has as much free memory as it had, within kSlack.
  bool IsFreeAgain(size_t before) {
    const auto end = std::chrono::steady_clock::now() + kReturnTime;
    while (device().FreeBytes() + kSlack < before) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  static uint64_t Count(Peer& peer, uint32_t value) {
    return peer.Ask({Request::kCount, value}).number;
  }
  static void Fill(Peer& peer, uint32_t value) {
    peer.Ask({Request::kFill, value});
  }
};

class DescriptorTest : public SharingTest {
 protected:
  void SetUp() override {
    SharingTest::SetUp();
    if (IsSkipped()) return;
    if (!ShareableMemory::IsSupported(device())) {
      GTEST_SKIP() << "the device has no shareable virtual memory management";
    }
  }
  size_t Granularity(CUmemAllocationGranularity_flags which) {
    const CUmemAllocationProp properties =
        ShareableMemory::Properties(device());
    size_t bytes = 0;
    EXPECT_EQ(cuda().cuMemGetAllocationGranularity(&bytes, &properties, which),
              CUDA_SUCCESS);
    return bytes;
  }
  // Has the peer import what the other one exports.
  static void Share(Peer& exporter, Peer& importer, size_t bytes) {
    const Answer made = exporter.Ask({Request::kCreate, 0, bytes});
    importer.Ask({Request::kImport, 0, bytes}, made.fd.get());
  }
};

TEST_F(DescriptorTest, SizesAreMultiplesOfTheGranularity) {
  const size_t least = Granularity(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const size_t best = Granularity(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  ASSERT_GT(least, 0u);
  EXPECT_EQ(least & (least - 1), 0u);
  EXPECT_EQ(best % least, 0u);
  const CUmemAllocationProp properties = ShareableMemory::Properties(device());
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda().cuMemCreate(&handle, least + 4096, &properties, 0),
            CUDA_ERROR_INVALID_VALUE);
  const ShareableMemory memory = ShareableMemory::Create(device(), best);
  EXPECT_EQ(memory.address() % least, 0u);
}

TEST_F(DescriptorTest, TwoProcessesSeeEachOthersWrites) {
  const ShareableMemory memory =
      ShareableMemory::Create(device(), kSharedBytes);
  Peer peer;
  peer.Ask({Request::kImport, 0, kSharedBytes}, memory.Export().get());
  device().Fill(memory.address(), kSharedBytes, 11);
  EXPECT_EQ(Count(peer, 11), kSharedBytes);
  Fill(peer, 12);
  EXPECT_TRUE(AreAll(device().Download(memory.address(), kSharedBytes), 12));
  peer.Ask({Request::kDrop});
  EXPECT_TRUE(AreAll(device().Download(memory.address(), kSharedBytes), 12));
}

// Fact 4 of docs/gpu-facts.md: this test and the next three.
TEST_F(DescriptorTest, MemoryOutlivesItsKilledExporter) {
  Peer exporter, importer;
  Share(exporter, importer, kSharedBytes);
  Fill(exporter, 13);
  exporter.Kill();
  EXPECT_EQ(Count(importer, 13), kSharedBytes);
  Fill(importer, 14);
  EXPECT_EQ(Count(importer, 14), kSharedBytes);
}

TEST_F(DescriptorTest, MemoryOutlivesAKilledImporter) {
  Peer exporter, importer;
  Share(exporter, importer, kSharedBytes);
  Fill(importer, 15);
  importer.Kill();
  EXPECT_EQ(Count(exporter, 15), kSharedBytes);
  Fill(exporter, 16);
  EXPECT_EQ(Count(exporter, 16), kSharedBytes);
}

TEST_F(DescriptorTest, MemoryIsFreeWhenBothAreDead) {
  const size_t before = device().FreeBytes();
  Peer exporter, importer;
  Share(exporter, importer, kManyBytes);
  EXPECT_LE(device().FreeBytes(), before - kManyBytes);
  exporter.Kill();
  importer.Kill();
  EXPECT_TRUE(IsFreeAgain(before));
}

TEST_F(DescriptorTest, MemoryIsFreeWhenBothHaveDroppedIt) {
  const size_t before = device().FreeBytes();
  Peer peer;
  {
    const ShareableMemory memory =
        ShareableMemory::Create(device(), kManyBytes);
    peer.Ask({Request::kImport, 0, kManyBytes}, memory.Export().get());
    peer.Ask({Request::kDrop});
  }
  peer.Kill();  // its context, too
  EXPECT_TRUE(IsFreeAgain(before));
}

TEST_F(DescriptorTest, RefusesForgedDescriptors) {
  const SharedPages pages(kSharedBytes);
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {pages.fd(), null.get()}) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_NE(ShareableMemory::TryImport(device(), fd, &handle), CUDA_SUCCESS);
  }
  const ShareableMemory memory =
      ShareableMemory::Create(device(), kSharedBytes);
  device().Fill(memory.address(), kSharedBytes, 17);  // the context still works
}

class IpcTest : public SharingTest {
 protected:
  // Skips if the device has no IPC. The exporter keeps the memory.
  void Allocate(Peer& exporter, size_t bytes, CUipcMemHandle* handle) {
    const Answer made = exporter.Try({Request::kAllocate, 0, bytes});
    if (made.result == CUDA_ERROR_NOT_SUPPORTED) {
      GTEST_SKIP() << "the device has no legacy IPC";
    }
    ASSERT_STREQ(made.error, "");
    *handle = made.handle;
  }
  static void Open(Peer& importer, const CUipcMemHandle& handle, size_t bytes) {
    importer.Ask({Request::kOpen, 0, bytes, handle});
  }
};

TEST_F(IpcTest, TwoProcessesSeeEachOthersWrites) {
  Peer exporter, importer;
  CUipcMemHandle handle;
  Allocate(exporter, kSharedBytes, &handle);
  if (IsSkipped()) return;
  Open(importer, handle, kSharedBytes);
  Fill(exporter, 21);
  EXPECT_EQ(Count(importer, 21), kSharedBytes);
  Fill(importer, 22);
  EXPECT_EQ(Count(exporter, 22), kSharedBytes);
  importer.Ask({Request::kDrop});
  EXPECT_EQ(Count(exporter, 22), kSharedBytes);
}

TEST_F(IpcTest, MemoryOutlivesAKilledImporter) {
  Peer exporter, importer;
  CUipcMemHandle handle;
  Allocate(exporter, kSharedBytes, &handle);
  if (IsSkipped()) return;
  Open(importer, handle, kSharedBytes);
  Fill(importer, 23);
  importer.Kill();
  EXPECT_EQ(Count(exporter, 23), kSharedBytes);
}

// CUDA leaves open what the importer then has: it may be the memory, or an
// error, but never other bytes.
TEST_F(IpcTest, AKilledExporterLeavesItsBytesOrAnError) {
  const size_t before = device().FreeBytes();
  Peer exporter, importer;
  CUipcMemHandle handle;
  Allocate(exporter, kManyBytes, &handle);
  if (IsSkipped()) return;
  Open(importer, handle, kManyBytes);
  exporter.Ask({Request::kFill, 24, kSharedBytes});
  exporter.Kill();
  const Answer count = importer.Try({Request::kCount, 24, kSharedBytes});
  const bool is_alive = count.result == CUDA_SUCCESS;
  EXPECT_EQ(count.number, is_alive ? kSharedBytes : 0);
  RecordProperty("after_the_death", is_alive ? "memory" : count.error);
  importer.Kill();
  EXPECT_TRUE(IsFreeAgain(before));
}

TEST_F(IpcTest, RefusesAForgedHandle) {
  Peer exporter, importer;
  CUipcMemHandle handle;
  Allocate(exporter, kSharedBytes, &handle);
  if (IsSkipped()) return;
  for (char& c : handle.reserved) c = static_cast<char>(~c);
  const Answer opened = importer.Try({Request::kOpen, 0, kSharedBytes, handle});
  EXPECT_NE(opened.result, CUDA_SUCCESS);
}

}  // namespace
}  // namespace maypole::cuda
