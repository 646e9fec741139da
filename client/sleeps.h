// How long a wait sleeps: 1, 1, 2, 4, .. kSleepMs ms, in steps that make up
// kSleepMs together, then kSleepMs each. The n-th sleep is about as long as all
// before it, so what is found at its end about who was late was so for at least
// half of the time that is told.
//
// Thread contract: a value.
#ifndef MAYPOLE_CLIENT_SLEEPS_H_
#define MAYPOLE_CLIENT_SLEEPS_H_

#include <algorithm>

#include "common/board.h"

namespace maypole {

// Bound of one sleep; also how soon an executor's death is seen.
inline constexpr int kSleepMs = kHeartbeatMs;

// What has happened in the sleeps of one wait.
struct Sleeps {
  int ms = 0;                // of those since anything moved
  bool interrupted = false;  // the last one, by a signal

  int NextMs() const {
    if (ms >= kSleepMs) return kSleepMs;
    return std::min(std::max(ms, 1), kSleepMs - ms);
  }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SLEEPS_H_
