// How long a wait sleeps: 1, 1, 2, 4, .. kMaxBackoffMs ms, in steps that make
// up kMaxBackoffMs together, then kMaxBackoffMs each. The n-th sleep is about
// as long as all before it, so what is found at its end about who was late was
// so for at least half of the time that is told.
//
// Thread contract: a value.
#ifndef MAYPOLE_CLIENT_SESSION_BACKOFF_H_
#define MAYPOLE_CLIENT_SESSION_BACKOFF_H_

#include <algorithm>

#include "common/board/board.h"

namespace maypole {

// Bound of one sleep; also how soon an executor's death is seen.
inline constexpr int kMaxBackoffMs = kHeartbeatMs;

// What has happened in the sleeps of one wait.
struct Backoff {
  int ms = 0;                // of those since anything moved
  bool interrupted = false;  // the last one, by a signal

  int NextMs() const {
    if (ms >= kMaxBackoffMs) return kMaxBackoffMs;
    return std::min(std::max(ms, 1), kMaxBackoffMs - ms);
  }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_BACKOFF_H_
