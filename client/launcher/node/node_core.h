// NodeCore: the decisions of NodeSupervisor: which daemons are ready, whether
// the end of a daemon is a loss, and in which order the processes of a node
// end.
//
//   phase      entered when                            left when
//   kRunning   at the start                            BeginEnd() is called
//   kDraining  ranks and processes that they left      their output has ended,
//              behind are killed                       or after kDrainLimit
//   kStopping  agents get SIGTERM                      the job's agents have
//                                                      ended, or after
//                                                      kAgentLimit
//   kLast      the coordinator gets SIGTERM            all daemons have ended,
//                                                      or after
//                                                      kCoordinatorLimit
//   kEnded     all remaining processes were killed     -
// A phase with nothing to wait for ends at once. After Hurry() the limits are
// shorter, so that an interrupted maypolerun ends within 2 s. The coordinator
// comes last: stopped earlier, it may not know yet that the ranks have left,
// and would end their job with an error.
//
// Thread contract: a value; not synchronized. Times are the caller's. No
// system calls.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_CORE_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_CORE_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/job/supervision.h"
#include "client/launcher/process/announcement.h"

namespace maypole::launcher {

// A time limit, and its shorter value after Hurry().
struct EndLimit {
  std::chrono::milliseconds normal, hurried;
};
inline constexpr EndLimit kDrainLimit{std::chrono::milliseconds(1000),
                                      std::chrono::milliseconds(100)};
inline constexpr EndLimit kAgentLimit{std::chrono::milliseconds(2000),
                                      std::chrono::milliseconds(100)};
inline constexpr EndLimit kCoordinatorLimit{std::chrono::milliseconds(1000),
                                            std::chrono::milliseconds(100)};
inline constexpr EndLimit kKillLimit{std::chrono::milliseconds(1000),
                                     std::chrono::milliseconds(100)};

class NodeCore {
 public:
  struct Daemon {
    std::string name;
    pid_t pid = 0;
    bool ready = false;
    bool ended = false;
    Announcement announcement;  // once it is ready

    // Used by NodeCore only.
    std::string announced;  // received, of an incomplete line
    bool wrote = false;     // something to its log
    bool asked = false;     // to end
  };
  enum class Step {
    kNothing,
    kKillRanks,
    kStopAgents,
    kStopCoordinator,
    kKillAll
  };

  // Also called for a daemon that is restarted under its name: until it is
  // ready, its announcement is that of its previous life.
  void OnDaemonStart(const std::string& name, pid_t pid);
  // The daemon wrote these bytes to kAnnounceFd. Returns the ranks that,
  // according to a worker, have called init().
  std::vector<JoinedRank> OnAnnounce(const std::string& name,
                                     std::string_view bytes);
  // The daemon wrote something to its log.
  void OnLog(const std::string& name);
  // Returns a message about its loss; empty if it was asked to end.
  std::string OnDaemonEnd(const std::string& name, const Exit& exit);
  // The daemon is asked to end: from now on its end is not a loss.
  void AskToEnd(const std::string& name);

  const std::vector<Daemon>& daemons() const { return daemons_; }
  const Daemon* Find(const std::string& name) const;
  bool all_ready() const;  // also if there are no daemons
  // The names of the daemons that are not ready, for a message.
  std::vector<std::string> not_ready() const;
  // One line "name pid=N metrics=..." per daemon, for --verbose.
  std::vector<std::string> Summary() const;

  // Begins and continues the end. Each returns what the caller must do now.
  // others_ended: the job's agents on other hosts have also ended.
  Step BeginEnd(Time now);
  Step ContinueEnd(Time now, bool output_ended, bool others_ended);
  void Hurry() { hurry_ = true; }
  bool hurried() const { return hurry_; }
  std::chrono::milliseconds Within(const EndLimit& limit) const {
    return hurry_ ? limit.hurried : limit.normal;
  }
  bool ended() const { return phase_ == Phase::kEnded; }
  // The latest time for the next call of ContinueEnd().
  std::optional<Time> deadline() const;

 private:
  enum class Phase { kRunning, kDraining, kStopping, kLast, kEnded };

  Daemon* Get(const std::string& name);
  Step Enter(Phase phase, Time now, Step step);
  bool agents_ended() const;
  bool daemons_ended() const;

  std::vector<Daemon> daemons_;
  Phase phase_ = Phase::kRunning;
  Time entered_;
  bool hurry_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_CORE_H_
