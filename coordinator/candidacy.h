// Candidacy: this process as one of several coordinators.
//
// Purpose: owns the parts of an election (coordinator/election/), and ends the
// process when it loses its leadership: a process leads at most once, so no
// state of an earlier leadership can do harm. The service manager restarts it
// as a standby.
//
//   Candidacy candidacy;
//   server_options.leadership = candidacy.leadership();
//   ... start the server ...
//   candidacy.Stand(flags, address, incarnation);
//   ... until SIGTERM ...
//   candidacy.leadership()->End();
//   server->Shutdown();
//   candidacy.Resign();
//
// Thread contract: one thread, that of main().
#ifndef MAYPOLE_COORDINATOR_CANDIDACY_H_
#define MAYPOLE_COORDINATOR_CANDIDACY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/election/elections.h"
#include "coordinator/election/leadership.h"
#include "coordinator/election/lease_alarm.h"
#include "coordinator/election_flags.h"

namespace maypole::coordinator {

// The exit status of a coordinator that has lost its leadership (EX_TEMPFAIL).
inline constexpr int kLeadershipLost = 75;

class Candidacy {
 public:
  // Enters the election. address: where executors reach this coordinator.
  absl::Status Stand(const ElectionFlags& flags, const std::string& address,
                     const std::string& incarnation);
  // Ends the lease, so that another coordinator can lead at once.
  void Resign();
  Leadership* leadership() { return &leadership_; }

 private:
  Leadership leadership_;
  std::unique_ptr<LeaseAlarm> alarm_;
  std::unique_ptr<Elections> elections_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CANDIDACY_H_
