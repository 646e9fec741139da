// BootTime(): the clock of leases. It also runs while the machine is suspended
// and while this process is stopped (SIGSTOP), as the lease in the store does.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COORDINATOR_ELECTION_BOOT_TIME_H_
#define MAYPOLE_COORDINATOR_ELECTION_BOOT_TIME_H_

#include <time.h>

#include <chrono>

namespace maypole::coordinator {

// Since the machine was booted.
using BootInstant = std::chrono::nanoseconds;

inline BootInstant BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) +
         std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_ELECTION_BOOT_TIME_H_
