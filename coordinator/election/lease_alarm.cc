#include "coordinator/election/lease_alarm.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/absl_status.h"

namespace maypole::coordinator {
namespace {

// What the signal handler uses.
char alarm_line[LeaseAlarm::kMaxLine];
size_t alarm_line_size = 0;
int alarm_status = 1;

extern "C" void EndProcess(int) {
  // If stderr is not read, a write could block.
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) == 1) {
    [[maybe_unused]] const ssize_t n =
        write(STDERR_FILENO, alarm_line, alarm_line_size);
  }
  _exit(alarm_status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseAlarm>> LeaseAlarm::Make(
    const std::string& line, int exit_status) {
  alarm_line_size = std::min(line.size(), sizeof(alarm_line));
  std::memcpy(alarm_line, line.data(), alarm_line_size);
  alarm_status = exit_status;
  struct sigaction action {};
  action.sa_handler = EndProcess;
  if (sigaction(SIGALRM, &action, nullptr) != 0) {
    return ToAbsl(ErrnoStatus(errno, "sigaction"));
  }
  std::unique_ptr<LeaseAlarm> alarm(new LeaseAlarm);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  if (timer_create(CLOCK_BOOTTIME, &event, &alarm->timer_) != 0) {
    alarm->timer_ = {};
    return ToAbsl(ErrnoStatus(errno, "timer_create"));
  }
  return alarm;
}

LeaseAlarm::~LeaseAlarm() {
  if (timer_ != timer_t{}) timer_delete(timer_);
}

void LeaseAlarm::Set(BootInstant at) {
  itimerspec when{};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
  when.it_value.tv_sec = seconds.count();
  when.it_value.tv_nsec = (at - seconds).count();
  timer_settime(timer_, TIMER_ABSTIME, &when, nullptr);
}

void LeaseAlarm::Clear() {
  const itimerspec never{};
  timer_settime(timer_, 0, &never, nullptr);
}

}  // namespace maypole::coordinator
