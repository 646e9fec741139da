// NowNs, NowMs: the clock of the executor's loop.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_CLOCK_H_
#define MAYPOLE_WORKER_EXECUTOR_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace maypole::worker {

// Nanoseconds since an arbitrary moment; monotonic.
inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline int64_t NowMs() { return NowNs() / 1000000; }

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_CLOCK_H_
