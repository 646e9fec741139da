// Guarded: an array for tests of kernels, at an address with a chosen remainder
// modulo 16, between bytes that nothing may write. GuardedHostAddress() is a
// HostAddress for them.
//
// Thread contract: one thread.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_TESTING_GUARDED_H_
#define MAYPOLE_COMMON_GPU_KERNELS_TESTING_GUARDED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace maypole::cuda {

// Added to a host address, it makes an address that only works on the "device".
inline constexpr uint64_t kDeviceBias = uint64_t{1} << 60;

inline void* GuardedHostAddress(unsigned long long address, size_t /*bytes*/) {
  return reinterpret_cast<void*>(address - kDeviceBias);
}

class Guarded {
 public:
  Guarded(size_t bytes, size_t remainder)
      : bytes_(bytes), memory_(bytes + 2 * kGuard + 32, kUnwritten) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    offset_ = kGuard + (0 - at) % 16 + remainder;
  }
  Guarded(Guarded&&) = default;  // the array stays where it is
  Guarded& operator=(Guarded&&) = default;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() { return memory_.data() + offset_; }
  uint64_t device() {
    return reinterpret_cast<uintptr_t>(data()) + kDeviceBias;
  }
  bool GuardsAreWhole() const {
    const auto whole = [](std::byte b) { return b == kUnwritten; };
    const auto begin = memory_.begin() + static_cast<ptrdiff_t>(offset_);
    const auto end = begin + static_cast<ptrdiff_t>(bytes_);
    return std::all_of(memory_.begin(), begin, whole) &&
           std::all_of(end, memory_.end(), whole);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr std::byte kUnwritten{0x5a};

  size_t bytes_;
  size_t offset_;
  std::vector<std::byte> memory_;
};

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_TESTING_GUARDED_H_
