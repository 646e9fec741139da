// FlagPage: 64-bit words of host memory that streams and host threads of
// several processes write and wait for.
//
//   auto page = FlagPage::Map(gpu, std::move(fd), kPageBytes);
//   gpu.WaitValue(stream, page->address(3), 7);
//   StoreWord(page->memory(), 3, 7);   // any host that maps it
//
// Thread contract: words are atomic; the page itself is a value.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_FLAG_PAGE_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_FLAG_PAGE_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "tests/gpu/probe/lab/lab.h"
#include "worker/backend/gpu/gpu.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::probe {

inline void StoreWord(const SharedMemory& memory, size_t index,
                      uint64_t value) {
  std::atomic_ref<uint64_t>(memory.word(index))
      .store(value, std::memory_order_seq_cst);
}

inline uint64_t LoadWord(const SharedMemory& memory, size_t index) {
  return std::atomic_ref<uint64_t>(memory.word(index))
      .load(std::memory_order_acquire);
}

// Polls until word `index` is at least `value`; false after the timeout.
inline bool AwaitWord(const SharedMemory& memory, size_t index, uint64_t value,
                      Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  for (int polls = 1;; ++polls) {
    if (LoadWord(memory, index) >= value) return true;
    if (polls % 64 != 0) continue;
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
}

class FlagPage {
 public:
  static absl::StatusOr<FlagPage> Map(gpu::Gpu& gpu, Fd fd, size_t bytes) {
    auto memory = SharedMemory::Map(std::move(fd), bytes);
    if (!memory.ok()) return memory.status();
    return Register(gpu, *std::move(memory));
  }
  static absl::StatusOr<FlagPage> Register(gpu::Gpu& gpu, SharedMemory memory) {
    auto registered =
        gpu::HostRegistration::Create(gpu, memory.data(), memory.bytes());
    if (!registered.ok()) return registered.status();
    FlagPage out;
    out.memory_ = std::move(memory);
    out.registered_ = *std::move(registered);
    return out;
  }

  const SharedMemory& memory() const { return memory_; }
  // For streams.
  gpu::Address address(size_t index = 0) const {
    return registered_.address() + 8 * index;
  }

 private:
  SharedMemory memory_;
  gpu::HostRegistration registered_;  // ends before the memory does
};

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_FLAG_PAGE_H_
