// LoopWatchdog: reports when the executor's loop is stuck.
//
// Purpose: the loop reports frozen ranks; this class watches the loop itself.
// The loop must not block for long between two sleeps. If it does (a thread
// cannot be joined, a file system hangs), a thread of this class reports for
// how long, and which action the loop is executing.
//
//   LoopWatchdog watchdog([](const LoopWatchdog::Report& r) { ... });
//   watchdog.Awake();        // the loop's turn begins
//   watchdog.Doing(action);
//   watchdog.Asleep();
//
// Thread contract: one loop; `report` is called from the watchdog's thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_LOOP_WATCHDOG_H_
#define MAYPOLE_WORKER_EXECUTOR_LOOP_WATCHDOG_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "worker/core/actions.h"

namespace maypole::worker {

// A turn is reported when it has lasted this long, and again after each further
// period of this length. In debug builds the bound is so short that any call
// that blocks the loop is reported, as by EventLoop.
#ifdef NDEBUG
inline constexpr std::chrono::milliseconds kLongestTurn(10000);
#else
inline constexpr std::chrono::milliseconds kLongestTurn(50);
#endif

class LoopWatchdog {
 public:
  struct Report {
    std::chrono::milliseconds stands{0};
    const char* doing = "";  // the last action that the turn has begun
  };

  explicit LoopWatchdog(std::function<void(const Report&)> report,
                        std::chrono::milliseconds longest = kLongestTurn);
  ~LoopWatchdog();

  void Awake();
  void Doing(const Action& action) {
    doing_.store(action.index(), std::memory_order_relaxed);
  }
  void Asleep() { awake_since_ns_.store(0, std::memory_order_relaxed); }

 private:
  void Main();

  const std::function<void(const Report&)> report_;
  const std::chrono::milliseconds longest_;
  std::atomic<int64_t> awake_since_ns_{0};  // 0: asleep
  std::atomic<size_t> doing_{std::variant_npos};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_LOOP_WATCHDOG_H_
