// The time of the executor's loop.
#ifndef MAYPOLE_WORKER_EXECUTOR_CLOCK_H_
#define MAYPOLE_WORKER_EXECUTOR_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace maypole::worker {

// Since some moment of the past; never goes back.
inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline int64_t NowMs() { return NowNs() / 1000000; }

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_CLOCK_H_
