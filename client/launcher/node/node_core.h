// NodeCore: what NodeSupervisor decides: which daemons are ready, whether the
// end of one is a loss, and in which order everything on a node ends.
//
//   phase      entered when                            left when
//   kRunning   at the start                            BeginEnd()
//   kDraining  ranks and what they have left are       their output has ended,
//              killed                                  or kDrainLimit
//   kStopping  daemons get SIGTERM                     all have ended, or
//                                                      kDaemonLimit
//   kEnded     whatever is left was killed             -
// Nothing is waited for that is not there. Limits are shorter in a hurry: when
// maypolerun is interrupted, everything is over within 2 s.
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

// A limit, and the same in a hurry.
struct EndLimit {
  std::chrono::milliseconds normal, hurried;
};
inline constexpr EndLimit kDrainLimit{std::chrono::milliseconds(1000),
                                      std::chrono::milliseconds(100)};
inline constexpr EndLimit kDaemonLimit{std::chrono::milliseconds(3000),
                                       std::chrono::milliseconds(200)};
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

    // Of use to NodeCore only.
    std::string announced;  // so far
    bool wrote = false;
    bool asked = false;  // to end
  };
  enum class Step { kNothing, kKillRanks, kStopDaemons, kKillAll };

  void OnDaemonStart(const std::string& name, pid_t pid);
  // What it wrote to kAnnounceFd.
  void OnAnnounce(const std::string& name, std::string_view bytes);
  // It wrote something to its log.
  void OnLog(const std::string& name);
  // A sentence about its loss; empty if it was asked to end.
  std::string OnDaemonEnd(const std::string& name, const Exit& exit);
  // It is asked to end.
  void AskToEnd(const std::string& name);

  const std::vector<Daemon>& daemons() const { return daemons_; }
  const Daemon* Find(const std::string& name) const;
  bool all_ready() const;  // also if there are no daemons
  // The names of those that are not ready, for a message.
  std::string not_ready() const;
  // "name pid=N metrics=..." of each, for --verbose.
  std::vector<std::string> Summary() const;

  // Begins the end. Each returns what is to be done now.
  Step BeginEnd(Time now);
  Step ContinueEnd(Time now, bool output_ended);
  void Hurry() { hurry_ = true; }
  std::chrono::milliseconds Within(const EndLimit& limit) const {
    return hurry_ ? limit.hurried : limit.normal;
  }
  bool ended() const { return phase_ == Phase::kEnded; }
  // When ContinueEnd() is to be called at the latest.
  std::optional<Time> deadline() const;

 private:
  enum class Phase { kRunning, kDraining, kStopping, kEnded };

  Daemon* Get(const std::string& name);
  Step Enter(Phase phase, Time now, Step step);
  bool daemons_ended() const;

  std::vector<Daemon> daemons_;
  Phase phase_ = Phase::kRunning;
  Time entered_;
  bool hurry_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_CORE_H_
