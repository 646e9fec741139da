// StallNotice: decides when a wait in which nothing moves is reported to the
// user.
//
// Purpose: when a rank waits for others, the coordinator reports the
// stragglers. This class covers stalls that no daemon can report: the daemon
// itself does not answer, an operation runs but does not move, ranks do not
// join. Each wait has a notice. It is due when nothing has moved for kStall,
// and again each time the stall has lasted four times as long.
//
//   StallNotice notice;
//   while (...) {
//     if (moved) notice.Moved();
//     else if (notice.Due(now)) TellUser(...);
//   }
//
// Thread contract: a value. Any thread may call TellUser().
#ifndef MAYPOLE_CLIENT_SESSION_STALL_NOTICE_H_
#define MAYPOLE_CLIENT_SESSION_STALL_NOTICE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace maypole {

inline constexpr std::chrono::seconds kStall(10);

class StallNotice {
 public:
  using Clock = std::chrono::steady_clock;

  // Data has moved: the stall, if any, is over.
  void Moved() { since_ = {}; }
  // Nothing has moved. `executor` is a word on the board that changes while the
  // executor's loop runs. True if it is time to tell the user.
  bool Due(Clock::time_point now, uint32_t executor = 0) {
    if (since_ == Clock::time_point{}) {
      since_ = now;
      due_ = kStall;
      turned_ = false;
    } else if (executor != executor_) {
      turned_ = true;
    }
    executor_ = executor;
    if (now - since_ < due_) return false;
    due_ *= 4;
    executor_turned_ = std::exchange(turned_, false);
    return true;
  }
  // After Due() has returned true: whether `executor` has changed since the
  // notice was last due.
  bool executor_turned() const { return executor_turned_; }
  // How long nothing has moved.
  std::chrono::seconds Stood(Clock::time_point now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - since_);
  }

 private:
  Clock::time_point since_{};  // zero: something has just moved
  std::chrono::seconds due_ = kStall;
  uint32_t executor_ = 0;
  bool turned_ = false;
  bool executor_turned_ = false;
};

// Writes a line to stderr. Never blocks: if stderr is full because its reader
// has stopped, the line is lost.
void TellUser(const std::string& line);

// Sets whether TellUser() writes, for the whole process; true at the start.
void ShowNotices(bool show);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_STALL_NOTICE_H_
