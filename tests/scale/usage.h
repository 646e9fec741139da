// Usage: CPU time and memory of a process, from the kernel.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_SCALE_USAGE_H_
#define MAYPOLE_TESTS_SCALE_USAGE_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace maypole::scale {

// Of all threads, those that have ended included.
absl::StatusOr<double> CpuSeconds(pid_t pid);

struct Memory {
  int64_t resident_bytes = 0;
  int64_t most_resident_bytes = 0;
  int64_t threads = 0;
};
absl::StatusOr<Memory> MemoryOf(pid_t pid);

}  // namespace maypole::scale

#endif  // MAYPOLE_TESTS_SCALE_USAGE_H_
