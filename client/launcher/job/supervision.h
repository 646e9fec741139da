// Supervision: what to do about the ranks when one ends, a signal comes or
// time passes. Pure: events in, the signal for the ranks out.
//
//   phase         entered when                             left after
//   kRunning      the ranks were started                   -
//   kGrace        a rank failed                            kFailureGrace
//   kTerminating  grace is over (SIGTERM to the ranks)     kTermGrace
//   kInterrupted  maypolerun got a signal (sent on)        kInterruptGrace
//   kKilling      the phase before is over (SIGKILL)       -
//
// Grace exists because the other ranks get Maypole's own error, which names
// who was lost, and end with it by themselves. A lost daemon is no event here:
// ranks that need it get an error, and a job may go on without its agents.
//
// Whose failure it was. Ranks fail because of another within milliseconds, and
// the first to fail need not be the first to end. So:
//   1. a rank that ended by Maypole's own error is not the cause if any other
//      failed without;
//   2. a rank that dies of an exception prints its traceback before it tells
//      the others that it leaves: its time is the traceback's;
//   3. a rank's connections close before its end by a signal is seen: its time
//      is up to kSignalSlack earlier (SIGABRT is an exception's end: as 2);
//   4. else the time is that of its end. The earliest time is the cause's.
// Ranks that ended because we stopped them did not fail. But if all failures
// are Maypole's own errors (a start timeout, a rank that has left), the first
// of them is not the cause either: suspects are the ranks that ended well by
// themselves, whenever that was (a rank tells the others that it leaves before
// it ends, and may take longer to end than they do), and the ranks that had to
// be stopped.
//
// Thread contract: a value; not synchronized. Times are the caller's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/output/lines.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kFailureGrace{5000};
inline constexpr std::chrono::milliseconds kTermGrace{2000};
inline constexpr std::chrono::milliseconds kInterruptGrace{1500};
// A second Ctrl-C later than this after the first one kills at once.
inline constexpr std::chrono::milliseconds kImpatience{300};
// A traceback older than this at a rank's end was not why it ended.
inline constexpr std::chrono::milliseconds kTracebackAge{10000};

inline constexpr std::chrono::milliseconds kSignalSlack{1000};

inline constexpr int kLostCode = 255;  // as ssh ends when it is cut off

// How a process ended.
struct Exit {
  bool signaled = false;
  int value = 0;      // exit code, or the signal
  bool lost = false;  // on a host that we have lost: nobody knows

  bool clean() const { return !lost && !signaled && value == 0; }
  int code() const { return lost ? kLostCode : signaled ? 128 + value : value; }
};

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string Describe(const Exit& exit);

// What a rank's last lines tell about its end.
struct Clues {
  std::optional<Time> last_traceback;
  bool maypole_error = false;
};

class Supervision {
 public:
  struct Failure {
    int rank = 0;
    Exit exit;
    bool maypole_error = false;
    Time when;
  };

  // Whose trouble a failure by Maypole's own error may be.
  struct Suspect {
    int rank = 0;
    bool exited_well = false;  // by itself; else it had to be stopped
  };

  explicit Supervision(int ranks) : alive_(ranks) {}

  // Each event returns the signal to send to all living ranks; 0: none.
  int OnRankExit(int rank, Exit exit, Time now, const Clues& clues);
  int OnSignal(int signal, Time now);
  int OnLauncherLost();  // maypolerun's guard was killed: nobody to wait for
  int OnTime(Time now);

  std::optional<Time> deadline() const { return deadline_; }
  bool ranks_ended() const { return alive_ == 0; }
  bool interrupted() const { return signal_ != 0; }
  const std::optional<Failure>& first_failure() const { return first_; }
  // Empty unless the first failure is Maypole's own error.
  std::vector<Suspect> suspects() const;
  // Of the whole job, once all ranks have ended.
  int exit_code() const;

 private:
  enum class Phase { kRunning, kGrace, kTerminating, kInterrupted, kKilling };

  int Enter(Phase phase, std::optional<Time> deadline, int signal);
  bool WeStoppedIt(Exit exit) const;

  int alive_;
  Phase phase_ = Phase::kRunning;
  std::optional<Time> deadline_;
  int signal_ = 0;  // that maypolerun itself got
  Time signal_time_;
  std::optional<Failure> first_;
  std::vector<Suspect> suspects_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_
