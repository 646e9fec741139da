// GpuPlace: where a tensor lies in GPU memory that a rank shares with the
// executor of its node.
//
// Purpose: a rank and the executor have the same memory at different addresses,
// so they name a place by the memory's number and an offset. A rank submits the
// place in one word (Submission.gpu_place); the executor reduces there.
//
//   63      48 47    40 39                                   0
//   +---------+--------+--------------------------------------+
//   | number  | gpu    | offset / kGpuPlaceAlignment          |
//   +---------+--------+--------------------------------------+
//
// An allgather or alltoall has room for its result behind the tensor, at
// GpuResultAt() bytes after the place.
//
// Thread contract: values and pure functions.
//
// Hostility: the executor checks number, GPU and offset against its own table.
#ifndef MAYPOLE_COMMON_BOARD_GPU_PLACE_H_
#define MAYPOLE_COMMON_BOARD_GPU_PLACE_H_

#include <cstdint>

#include "common/limits.h"

namespace maypole {

inline constexpr uint64_t kGpuPlaceAlignment = 256;

struct GpuPlace {
  uint32_t number = 0;  // of the rank's memory, from 1
  uint32_t gpu = 0;     // the executor's number of the GPU
  uint64_t offset = 0;  // bytes; a multiple of kGpuPlaceAlignment

  bool operator==(const GpuPlace&) const = default;
};

// `bytes`: of the tensor.
inline constexpr uint64_t GpuResultAt(uint64_t bytes) {
  return (bytes + kGpuPlaceAlignment - 1) / kGpuPlaceAlignment *
         kGpuPlaceAlignment;
}

// 0 is no place: the tensor is in host memory.
inline constexpr uint64_t kNoGpuPlace = 0;

inline constexpr uint64_t PackGpuPlace(const GpuPlace& place) {
  return uint64_t{place.number} << 48 | uint64_t{place.gpu} << 40 |
         place.offset / kGpuPlaceAlignment;
}
inline constexpr GpuPlace UnpackGpuPlace(uint64_t word) {
  return {static_cast<uint32_t>(word >> 48),
          static_cast<uint32_t>(word >> 40 & 0xff),
          (word & ((uint64_t{1} << 40) - 1)) * kGpuPlaceAlignment};
}
static_assert(kMaxGpuMemories < 1 << 16 && kMaxGpus <= 1 << 8 &&
              kMaxGpuMemoryBytes / kGpuPlaceAlignment <= uint64_t{1} << 40);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_BOARD_GPU_PLACE_H_
