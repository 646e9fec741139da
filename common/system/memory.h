// The kernel's memory: its page size, and pages that are reserved at once.
//
// Thread contract: all functions may be called by any thread.
#ifndef MAYPOLE_COMMON_SYSTEM_MEMORY_H_
#define MAYPOLE_COMMON_SYSTEM_MEMORY_H_

#include <cstdint>

#include "common/status.h"

namespace maypole {

// 4096 on x86-64; aarch64 and ppc64le have kernels with 65536.
uint64_t PageBytes();

// n as a multiple of `to`.
inline constexpr uint64_t RoundUp(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}
inline constexpr uint64_t RoundDown(uint64_t n, uint64_t to) {
  return n / to * to;
}

// Takes memory for [begin, end) of a memfd, so that shortage is an error here
// and no SIGBUS later. A signal makes the kernel give back what one call has
// taken so far: the range is reserved in parts, or a program with a profiling
// timer would never get a large one.
Status ReservePages(int fd, uint64_t begin, uint64_t end);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_MEMORY_H_
