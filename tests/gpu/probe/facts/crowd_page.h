// The words of the host page that the processes of fact 8 share. Index i stands
// for a waiting stream, or a pair of streams.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_CROWD_PAGE_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_CROWD_PAGE_H_

#include <cstddef>

namespace maypole::probe {

inline constexpr size_t kMostWaits = 128;
inline constexpr size_t kCrowdPageBytes = 8192;
// Flags that streams wait for: flag i, and for pairs also its answer.
inline constexpr size_t kFlagWords = 0;
inline constexpr size_t kAnswerWords = kMostWaits;
// Written by a stream at its end: by one that waited; by one that releases
// others, or is the first of a pair.
inline constexpr size_t kWaitedWords = 2 * kMostWaits;
inline constexpr size_t kRanWords = 3 * kMostWaits;
// Warm-ups and pulses, one for each process.
inline constexpr size_t kScratchWords = 4 * kMostWaits;

static_assert((kScratchWords + kMostWaits) * 8 <= kCrowdPageBytes);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_CROWD_PAGE_H_
