// Progress: tells a waiting thread how far the executors of a job have come.
//
//   Progress progress;
//   progress.Expect(kConnected, 64);
//   ... each executor calls progress.Add(kConnected) ...
//   absl::StatusOr<Clock::time_point> last = progress.Await(kConnected);
//
// Thread contract: any thread may call any method.
#ifndef MAYPOLE_TESTS_SCALE_PROGRESS_H_
#define MAYPOLE_TESTS_SCALE_PROGRESS_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace maypole::scale {

using Clock = std::chrono::steady_clock;

enum Phase {
  kWelcomed,   // the coordinator has answered the hello
  kStarted,    // EpochStart has come
  kConnected,  // Endpoints have come
  kReported,   // every report of the step is acknowledged
  kExecuted,   // every operation of the step is in an Execute that has come
  kEnded,      // EpochEnd has come
  kPhases,
};

class Progress {
 public:
  // From now on counts `count` executors that reach the phase.
  void Expect(Phase phase, size_t count) {
    std::lock_guard lock(mutex_);
    waits_[phase] = {count, 0, {}};
  }
  void Add(Phase phase) {
    std::lock_guard lock(mutex_);
    Wait& wait = waits_[phase];
    if (++wait.reached < wait.expected) return;
    wait.last = Clock::now();
    changed_.notify_all();
  }
  // Something that must not happen: Await() returns it. The first one counts.
  void Fail(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = what;
    changed_.notify_all();
  }
  // When the last of the expected executors has reached the phase.
  absl::StatusOr<Clock::time_point> Await(Phase phase,
                                          std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    const Wait& wait = waits_[phase];
    const bool done = changed_.wait_for(lock, limit, [&] {
      return !failure_.empty() || wait.reached >= wait.expected;
    });
    if (!failure_.empty()) return absl::InternalError(failure_);
    if (done) return wait.last;
    return absl::DeadlineExceededError(absl::StrCat(
        wait.reached, " of ", wait.expected, " executors have reached phase ",
        phase, " within ", limit.count(), " s"));
  }

 private:
  struct Wait {
    size_t expected = 0;
    size_t reached = 0;
    Clock::time_point last;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Wait, kPhases> waits_;
  std::string failure_;
};

}  // namespace maypole::scale

#endif  // MAYPOLE_TESTS_SCALE_PROGRESS_H_
