// The kernel's page size, and reserving the pages of a memfd.
//
// Thread contract: all functions may be called by any thread.
#ifndef MAYPOLE_COMMON_SYSTEM_MEMORY_H_
#define MAYPOLE_COMMON_SYSTEM_MEMORY_H_

#include <cstdint>

#include "common/status.h"

namespace maypole {

// The kernel's page size: 4096 on x86-64; up to 65536 on aarch64 and ppc64le.
uint64_t PageBytes();

// Rounds n up (down) to a multiple of `to`.
inline constexpr uint64_t RoundUp(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}
inline constexpr uint64_t RoundDown(uint64_t n, uint64_t to) {
  return n / to * to;
}

// Reserves memory for [begin, end) of a memfd, so that a shortage is an error
// here and not a SIGBUS later. Reserves the range in parts: a signal makes the
// kernel release everything that the interrupted system call has reserved, and
// a program with a profiling timer would never get a large range.
Status ReservePages(int fd, uint64_t begin, uint64_t end);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_MEMORY_H_
