// Futex calls on shared memory; every wait has a time limit.
//
// Thread contract: any thread of any process that maps the word.
#ifndef MAYPOLE_COMMON_BOARD_FUTEX_H_
#define MAYPOLE_COMMON_BOARD_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

namespace maypole {

// FUTEX_WAIT and FUTEX_WAKE use all bits.
inline constexpr uint32_t kBackgroundBit = 1;

enum class FutexResult { kWokenOrChanged, kTimeout, kInterrupted };

// Sleeps while *word == expected, at most timeout_ms.
inline FutexResult FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
                             int timeout_ms) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  timespec ts{timeout_ms / 1000, (timeout_ms % 1000) * 1000000L};
  const long rc = syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word),
                          FUTEX_WAIT, expected, &ts, nullptr, 0);
  if (rc == 0 || errno == EAGAIN) return FutexResult::kWokenOrChanged;
  return errno == EINTR ? FutexResult::kInterrupted : FutexResult::kTimeout;
}

// Like FutexWait(), but FutexWakeForeground() does not wake this thread.
inline FutexResult FutexWaitInBackground(std::atomic<uint32_t>& word,
                                         uint32_t expected, int timeout_ms) {
  timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += (timeout_ms % 1000) * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    ++until.tv_sec;
    until.tv_nsec -= 1000000000L;
  }
  const long rc =
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET,
              expected, &until, nullptr, kBackgroundBit);
  if (rc == 0 || errno == EAGAIN) return FutexResult::kWokenOrChanged;
  return errno == EINTR ? FutexResult::kInterrupted : FutexResult::kTimeout;
}

// Wakes the threads in FutexWait().
inline void FutexWakeForeground(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET,
          INT_MAX, nullptr, nullptr, ~kBackgroundBit);
}

inline void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_BOARD_FUTEX_H_
