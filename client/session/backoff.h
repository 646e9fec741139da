// Backoff: how long a waiting thread sleeps: 1, 1, 2, 4, ... ms until these
// sleeps add up to kMaxBackoffMs, then kMaxBackoffMs each. Each sleep is about
// as long as all earlier ones together. So a rank that is found late at the end
// of a sleep has been late for at least half of the reported time.
//
// Thread contract: a value.
#ifndef MAYPOLE_CLIENT_SESSION_BACKOFF_H_
#define MAYPOLE_CLIENT_SESSION_BACKOFF_H_

#include <algorithm>

#include "common/board/board.h"

namespace maypole {

// The longest sleep; also how soon an executor's death is noticed.
inline constexpr int kMaxBackoffMs = kHeartbeatMs;

// The sleeps of one wait.
struct Backoff {
  int ms = 0;                // slept in total since data last moved
  bool interrupted = false;  // a signal interrupted the last sleep

  int NextMs() const {
    if (ms >= kMaxBackoffMs) return kMaxBackoffMs;
    return std::min(std::max(ms, 1), kMaxBackoffMs - ms);
  }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_BACKOFF_H_
