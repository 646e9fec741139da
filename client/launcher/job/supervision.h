// Supervision: decides which signal the ranks get when a rank ends, a signal
// arrives or time passes, and which rank failed first. Pure: events in, the
// signal for the ranks out.
//
//   phase         entered when                             left after
//   kRunning      the ranks were started                   -
//   kGrace        a rank failed                            kFailureGrace
//   kTerminating  grace is over (SIGTERM to the ranks)     kTermGrace
//   kInterrupted  maypolerun got a signal (forwarded)      kInterruptGrace;
//                                                          after SIGTERM
//                                                          stop_timeout
//   kKilling      the phase before is over (SIGKILL)       -
//
// SIGTERM is how schedulers announce that they take a machine back, so ranks
// get time for a checkpoint. A second SIGTERM changes nothing, since schedulers
// send several; any other second signal kills the ranks.
//
// kGrace exists because the other ranks get an error from Maypole that names
// the lost rank, and usually end by themselves. A lost daemon is not an event
// here: ranks that need it get an error, and a job can continue without its
// agents.
//
// Which rank failed first? When one rank fails, others follow within
// milliseconds, and the first to fail need not be the first to end. Rules:
//   1. A rank that ended with an error from Maypole is not the cause if another
//      rank failed without one.
//   2. A rank that ends because of an exception prints its traceback before it
//      tells the others that it leaves. Its time of failure is the traceback's.
//   3. The connections of a rank that a signal killed close before we see its
//      end. Its time of failure is kSignalSlack before its end (except for
//      SIGABRT, with which an exception may end a process).
//   4. For all others it is the time of their end.
// The cause is the failure with the earliest time. Ranks that ended because we
// stopped them did not fail. If all failures are errors from Maypole (a start
// timeout, a rank that has left), the first of them is not the cause either.
// Then the suspects are the ranks that we had to stop and those that exited
// with code 0, at any time: a rank tells the others that it leaves before it
// ends, and may end later than they do.
//
// Thread contract: a value; not synchronized. Times are the caller's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/output/lines.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kFailureGrace{5000};
inline constexpr std::chrono::milliseconds kTermGrace{2000};
inline constexpr std::chrono::milliseconds kInterruptGrace{1500};
inline constexpr std::chrono::seconds kStopTimeout{30};  // --stop-timeout
// A second Ctrl-C kills all ranks if it comes later than this after the first.
inline constexpr std::chrono::milliseconds kImpatience{300};
// A traceback that is older than this when its rank ends is not the reason.
inline constexpr std::chrono::milliseconds kTracebackAge{10000};

inline constexpr std::chrono::milliseconds kSignalSlack{1000};

inline constexpr int kLostCode = 255;  // as ssh when its connection breaks

// How a process ended.
struct Exit {
  bool signaled = false;
  int value = 0;      // the exit code, or the signal
  bool lost = false;  // unknown: we have lost the process's host
  // Of an elastic job: it had trained to the end (common/finished_file.h).
  bool finished = false;

  bool clean() const { return !lost && !signaled && value == 0; }
  int code() const { return lost ? kLostCode : signaled ? 128 + value : value; }
  // SIGTERM has ended it, or asked it to leave its elastic job.
  bool by_sigterm() const { return code() == 128 + SIGTERM; }
};

// For a process that could not be started; the exit code of shells.
inline constexpr Exit kNotStarted{.value = 127};

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string Describe(const Exit& exit);

// What a rank's last lines of output say about its end.
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

  // A rank that may have caused the error from Maypole that others got.
  struct Suspect {
    int rank = 0;
    bool exited_well = false;  // with code 0; false: it had to be stopped
  };

  explicit Supervision(int ranks,
                       std::chrono::seconds stop_timeout = kStopTimeout)
      : alive_(ranks), stop_timeout_(stop_timeout) {}

  // One more rank runs, of an elastic job.
  void OnRankStart() { ++alive_; }
  // One rank fewer, whose end has no consequences.
  void OnRankReplaced() { --alive_; }

  // Each event returns the signal to send to all ranks that are alive; 0: none.
  int OnRankExit(int rank, Exit exit, Time now, const Clues& clues);
  int OnSignal(int signal, Time now);
  int OnLauncherLost();  // maypolerun's guard was killed: no grace
  int OnTime(Time now);
  // The job has failed for a reason other than a rank's end.
  int OnJobFailed(Time now);

  std::optional<Time> deadline() const { return deadline_; }
  bool ranks_ended() const { return alive_ == 0; }
  bool interrupted() const { return signal_ != 0; }
  const std::optional<Failure>& first_failure() const { return first_; }
  // Other ranks that were killed by a signal not sent by us, by rank.
  std::vector<Failure> also_killed() const;
  // Empty unless the first failure is an error from Maypole.
  std::vector<Suspect> suspects() const;
  // The job's exit code, once all ranks have ended.
  int exit_code() const;

 private:
  enum class Phase { kRunning, kGrace, kTerminating, kInterrupted, kKilling };

  int Enter(Phase phase, std::optional<Time> deadline, int signal);
  bool WeStoppedIt(Exit exit) const;

  int alive_;
  std::chrono::seconds stop_timeout_;
  Phase phase_ = Phase::kRunning;
  std::optional<Time> deadline_;
  bool failed_ = false;  // OnJobFailed()
  int signal_ = 0;       // the first signal that maypolerun itself got
  Time signal_time_;
  std::optional<Failure> first_;
  std::vector<Failure> killed_;
  std::vector<Suspect> suspects_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_SUPERVISION_H_
