// The words of the host page that the processes of fact 6 share; each in a
// cache line of its own.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_DEAD_PAGE_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_DEAD_PAGE_H_

#include <cstddef>

namespace maypole::probe {

inline constexpr size_t kDeadPageBytes = 4096;
// The flag that the survivor's stream waits for: written by the writer's
// stream, or by the survivor's watchdog.
inline constexpr size_t kFlagWord = 0;
// Written by the survivor's stream after the wait.
inline constexpr size_t kDoneWord = 8;
// Counted up by the writer's stream, before and after it writes the flag.
inline constexpr size_t kProgressWord = 16;
// A word that is never written.
inline constexpr size_t kNeverWord = 24;
// Scratch of warm-ups, one for each process.
inline constexpr size_t kSurvivorScratch = 32;
inline constexpr size_t kWriterScratch = 40;

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_DEAD_PAGE_H_
