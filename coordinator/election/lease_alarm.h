// LeaseAlarm: ends this process when its lease ends, whatever its threads do.
//
// Purpose: a leader whose threads hang, or that was stopped (SIGSTOP) or
// suspended beyond its lease, must not continue. A kernel timer sends SIGALRM
// at the given time; the handler writes one line to stderr and ends the
// process. A process that was stopped handles the signal when it is continued,
// before its threads run again (except that a thread on another processor may
// run for some microseconds until the process is gone; Leadership::Leads() is
// already false for it).
//
//   auto alarm = LeaseAlarm::Make("level=error ... \n", 75);
//   (*alarm)->Set(until);
//
// Thread contract: at most one in a process; any thread may call Set() and
// Clear().
#ifndef MAYPOLE_COORDINATOR_ELECTION_LEASE_ALARM_H_
#define MAYPOLE_COORDINATOR_ELECTION_LEASE_ALARM_H_

#include <time.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/election/boot_time.h"

namespace maypole::coordinator {

class LeaseAlarm {
 public:
  // line: what the handler writes, at most kMaxLine bytes.
  static absl::StatusOr<std::unique_ptr<LeaseAlarm>> Make(
      const std::string& line, int exit_status);
  ~LeaseAlarm();
  LeaseAlarm(const LeaseAlarm&) = delete;
  LeaseAlarm& operator=(const LeaseAlarm&) = delete;

  static constexpr size_t kMaxLine = 1024;

  // Replaces the time that was set before.
  void Set(BootInstant at);
  void Clear();

 private:
  LeaseAlarm() = default;

  timer_t timer_{};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_LEASE_ALARM_H_
