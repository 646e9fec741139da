// ShareableMemory, SharedPages, HostWords: memory that two processes use, and
// memory that the host and the GPU use.
//
//   ShareableMemory mine = ShareableMemory::Create(device, bytes);
//   Fd fd = mine.Export();                       // to another process
//   ShareableMemory theirs = ShareableMemory::Import(device, fd, bytes);
//
// Thread contract: as Device.
//
// Invariants: the Device outlives them. Destructors expect that no work uses
// the memory.
#ifndef MAYPOLE_TESTS_GPU_TESTING_MEMORY_H_
#define MAYPOLE_TESTS_GPU_TESTING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/system/fd.h"
#include "tests/gpu/testing/device.h"

namespace maypole::cuda {

// Virtual memory management: memory of the device, mapped with read and write
// access.
class ShareableMemory {
 public:
  static bool IsSupported(const Device& device);
  static CUmemAllocationProp Properties(const Device& device);
  // The bytes are rounded up to the granularity.
  static size_t Rounded(const Device& device, size_t bytes);

  static ShareableMemory Create(const Device& device, size_t bytes);
  static ShareableMemory Import(const Device& device, const Fd& fd,
                                size_t bytes);
  static CUresult TryImport(const Device& device, int fd,
                            CUmemGenericAllocationHandle* handle);

  ShareableMemory(ShareableMemory&& o) noexcept
      : device_(o.device_),
        handle_(o.handle_),
        bytes_(o.bytes_),
        address_(std::exchange(o.address_, 0)) {}
  ShareableMemory& operator=(ShareableMemory&&) = delete;
  ~ShareableMemory();

  Fd Export() const;
  CUdeviceptr address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  ShareableMemory(const Device& device, CUmemGenericAllocationHandle handle,
                  size_t bytes);

  const Device& device_;
  const CUmemGenericAllocationHandle handle_;
  const size_t bytes_;
  CUdeviceptr address_ = 0;
};

// Pages of a memfd, which other processes map by its descriptor.
class SharedPages {
 public:
  explicit SharedPages(size_t bytes);
  SharedPages(Fd fd, size_t bytes);

  int fd() const { return fd_.get(); }
  std::byte* data() const { return mapping_.data(); }
  size_t bytes() const { return mapping_.size(); }
  uint64_t& word(size_t index) const {
    return reinterpret_cast<uint64_t*>(data())[index];
  }

 private:
  Fd fd_;
  Mapping mapping_;
};

// While it exists, the GPU may access the pages.
class Registered {
 public:
  // The flags with which the product registers memory that it copies only.
  static constexpr unsigned kForCopies = CU_MEMHOSTREGISTER_PORTABLE;

  Registered(const Device& device, const SharedPages& pages,
             unsigned flags = kForCopies | CU_MEMHOSTREGISTER_DEVICEMAP);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  CUdeviceptr address() const { return address_; }  // 0 with kForCopies

 private:
  const Device& device_;
  std::byte* const data_;
  CUdeviceptr address_ = 0;
};

// Page-locked memory of the driver.
class PinnedMemory {
 public:
  PinnedMemory(const Device& device, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  uint64_t& word(size_t index) const {
    return static_cast<uint64_t*>(data_)[index];
  }
  CUdeviceptr address() const { return address_; }

 private:
  const Device& device_;
  void* data_ = nullptr;
  CUdeviceptr address_ = 0;
};

uint64_t LoadWord(uint64_t& word);
void StoreWord(uint64_t& word, uint64_t value);
// Returns when the word has this value. Throws after a minute.
void AwaitWord(uint64_t& word, uint64_t value);

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_TESTING_MEMORY_H_
