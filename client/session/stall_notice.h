// StallNotice: a wait in which nothing moves says so to the user.
//
// Purpose: a rank that waits for others is told by the coordinator who is late.
// This is for what no daemon can tell: that it does not answer, that an
// operation runs and does not move, that ranks do not come. Each wait has a
// notice; it is due when nothing has moved for kStall, and again each time four
// times as long has passed.
//
//   StallNotice notice;
//   while (...) {
//     if (moved) notice.Moved();
//     else if (notice.Due(now)) TellUser(...);
//   }
//
// Thread contract: a value. TellUser(): any thread.
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

  // Something has moved.
  void Moved() { since_ = {}; }
  // Nothing has, and so the executor's word on the board is. True: it is time
  // to say so.
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
  // After Due(): whether the word has changed since it was due last.
  bool executor_turned() const { return executor_turned_; }
  // For how long nothing has moved.
  std::chrono::seconds Stood(Clock::time_point now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - since_);
  }

 private:
  Clock::time_point since_{};  // none: something has just moved
  std::chrono::seconds due_ = kStall;
  uint32_t executor_ = 0;
  bool turned_ = false;
  bool executor_turned_ = false;
};

// A line on stderr. A reader that has stopped must not stop this rank: then the
// line is lost.
void TellUser(const std::string& line);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_STALL_NOTICE_H_
