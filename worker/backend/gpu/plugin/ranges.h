// Range: a range of addresses that an operation reads or writes. Ranges are
// checked before the operation is enqueued, because an invalid access of a
// kernel loses the whole context.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_RANGES_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_RANGES_H_

#include <cstdint>
#include <limits>
#include <string>

#include "worker/backend/gpu/plugin/failure.h"

namespace maypole::gpu::plugin {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The range of `count` elements at `address`. Throws InvalidArgument if the
// address is 0 or not a multiple of the element size, or if the range exceeds
// the address space.
inline Range RangeOf(uint64_t address, uint64_t count, uint64_t element) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  if (address == 0 || address % element != 0 ||
      count > (kMax - address) / element) {
    throw InvalidArgument(std::to_string(count) + " elements of " +
                          std::to_string(element) + " bytes at " +
                          Hex(address) +
                          ": not valid, or not aligned to an element");
  }
  return {address, address + count * element};
}

inline bool Overlap(const Range& a, const Range& b) {
  return a.begin < b.end && b.begin < a.end;
}

inline void CheckDisjoint(const Range& a, const Range& b) {
  if (Overlap(a, b)) {
    throw InvalidArgument("memory at " + Hex(a.begin) + " and " + Hex(b.begin) +
                          ", " + std::to_string(a.end - a.begin) +
                          " bytes each, overlaps");
  }
}

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_RANGES_H_
