// ElasticDriver: decides on which hosts a job's processes run, when one that
// has ended is restarted, and when the job ends.
//
// Purpose: hosts come (from the command line's list or a discovery script),
// fail and go. Pure: events in, actions out. The coordinator decides which
// processes are in the job's epoch, and with which ranks
// (coordinator/core/membership/elastic.h). maypole.ray and maypole.spark also
// use this class (client/elastic_driver.h); there a host is a Ray node or a
// Spark task.
//
//   host       entered when                          left when
//   kWanted    it is listed, or has no node          its node is started
//   kStarting  its node is started                   the node is ready, or lost
//   kReady     processes may run there               it fails, or is not listed
//   kCooling   its node or a process has failed;     the cool-down is over
//              nothing starts there
//   kLeaving   it is no longer listed                its processes have ended
//
// When a host is delisted or loses slots, the processes concerned get SIGTERM,
// whereupon they leave at their next commit, and SIGKILL after kLeaveGrace.
//
// Cool-down: the first failure costs the shortest one, each further failure
// twice as much, up to the longest. Failures while the host cools down count as
// one with the first: processes often end together. After kForgetAfter without
// a failure a host starts from the shortest again. The cool-down survives
// delisting; no host is banned permanently.
//
// reset_limit counts changes: a failure of a process or a node, and a change of
// the list of hosts. Delisting a host whose node was lost is no further change:
// its loss was one.
//
// The job ends
//   well    when a process has ended with code 0 and all others have too. (A
//           process that was asked to leave, by us or by others, has not ended
//           with code 0 but with that of SIGTERM.)
//           kFinishGrace after the first one, those that still run get SIGTERM
//           once: they may wait for an epoch that will never start. Those that
//           have finished training ignore it (maypole/common/elastic.py); one
//           that leaves its training by it makes the job fail
//   badly   when fewer than min_size processes could run for `patience`; when
//           there were more than reset_limit changes; when each host has failed
//           kHopeless times in a row within kShortLife and not by SIGKILL or
//           SIGTERM; when kHopeless times no process was left, no signal or
//           lost host was the cause, and at most kForgetAfter lay between two
//           of them: each time the training may have begun anew; when a process
//           fails after it or another one has trained to the end, because the
//           training does not start again; when the caller says so (OnJobLost)
// The end of a process that was asked to leave has no consequences, except that
// the training is over if the process has trained to the end.
//
// A fixed job (Settings::fixed) has min = max, and no process is replaced: when
// the nodes of all hosts are ready, all processes are started, in the order of
// hosts and slots, so that a process's number is its rank. The loss of a node
// before that ends the job badly. Afterwards the driver decides nothing: the
// caller knows what the end of a process means.
//
// Thread contract: a value; not synchronized. Times are the caller's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_DRIVER_H_
#define MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_DRIVER_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/launcher/job/supervision.h"

namespace maypole::launcher {

inline constexpr std::chrono::seconds kLeaveGrace{30};
inline constexpr std::chrono::seconds kFinishGrace{5};
inline constexpr std::chrono::seconds kForgetAfter{600};
inline constexpr std::chrono::seconds kShortLife{60};
inline constexpr int kHopeless = 3;

// A host and how many processes it may run.
struct HostSlots {
  std::string name;
  int slots = 1;

  bool operator==(const HostSlots&) const = default;
};

class ElasticDriver {
 public:
  struct Settings {
    int first_size = 1;  // processes of the first start
    int min_size = 1;
    int max_size = 1;
    std::chrono::milliseconds patience{600'000};
    int reset_limit = -1;  // changes; -1: any number
    std::chrono::milliseconds shortest_cooldown{1000};
    std::chrono::milliseconds longest_cooldown{60'000};
    bool fixed = false;  // needs only first_size and max_size, which are equal
    // The names by which the user knows these limits.
    std::string reset_limit_name = "--reset-limit";
    std::string patience_name = "--elastic-timeout";
  };

  // A node is one life of a host in the job: each start has a new number.
  struct StartNode {
    int node = 0;
    std::string host;
  };
  struct StopNode {
    int node = 0;
  };
  struct StartProcess {
    int process = 0;  // a new number
    int node = 0;
    int slot = 0;  // of the host, from 0
  };
  struct SignalProcess {
    int process = 0;
    int signal = 0;
  };
  struct Tell {
    std::string line;
  };
  // All processes must end now. No other action follows.
  struct EndBadly {
    std::string why;
  };
  using Action = std::variant<StartNode, StopNode, StartProcess, SignalProcess,
                              Tell, EndBadly>;
  using Actions = std::vector<Action>;

  explicit ElasticDriver(const Settings& settings) : settings_(settings) {}

  // The hosts that may be used, in order of preference.
  Actions OnHosts(const std::vector<HostSlots>& hosts, Time now);
  Actions OnNodeReady(int node, Time now);
  // The node is lost; its processes count as ended.
  Actions OnNodeLost(int node, const std::string& why, Time now);
  // Sets *failed if its end makes the whole job fail. `how` completes "process
  // 3 (host a) ".
  Actions OnProcessEnd(int process, const Exit& exit, const std::string& how,
                       Time now, bool* failed);
  Actions OnProcessEnd(int process, const Exit& exit, Time now, bool* failed) {
    return OnProcessEnd(process, exit, Describe(exit), now, failed);
  }
  // Something is lost without which no process can continue.
  Actions OnJobLost(const std::string& why);
  Actions OnTime(Time now);
  std::optional<Time> deadline() const;

  // Whether a process that had trained to the end has ended; from then on no
  // process is started.
  bool finishing() const { return finished_at_.has_value(); }
  // Whether all processes of a fixed job were started.
  bool filled() const { return settings_.fixed && begun_; }
  bool fixed() const { return settings_.fixed; }
  bool over() const { return over_; }
  int running() const { return static_cast<int>(processes_.size()); }

 private:
  enum class State { kWanted, kStarting, kReady, kCooling, kLeaving };
  struct HostState {
    int slots = 0;
    State state = State::kWanted;
    int node = -1;  // while it has one
    bool listed = true;
    int failures = 0;        // consecutive
    int short_failures = 0;  // consecutive, soon after a start
    Time started{};          // the last process, or the node
    std::optional<Time> failed_at;
    Time cool_until{};
  };
  struct Process {
    std::string host;
    int slot = 0;
    Time started{};
    std::optional<Time> leave_requested;  // when
  };

  HostState* HostOf(int node, std::string* name);
  std::chrono::milliseconds Cooldown(int failures) const;
  void Fail(const std::string& name, HostState* host, bool short_life,
            const std::string& what, Time now);
  static State WithoutNode(const HostState& host, Time now);
  void Leave(const std::string& name, HostState* host, Time now);
  // Requests the processes in the slots of the host from `slot` on to leave.
  void RequestLeave(const std::string& name, int slot, Time now);
  void KillLate(Time now);
  void CountChange(const std::string& what);
  void CheckHope(const std::string& what, Time now);
  bool EachHostIsHopeless() const;
  // Counts failures after which no process is left.
  bool HasFailedAsAWhole(Time now);
  bool Uses(const std::string& host) const;
  int Slots() const;
  void SettleHost(const std::string& name, HostState* host, Time now);
  void FinishOthers(Time now);
  void FillSlots(Time now);
  void FillHost(const std::string& name, HostState* host, Time now);
  void CheckSize(Time now);
  Actions Decide(Time now);
  void End(const std::string& why);

  const Settings settings_;
  std::vector<std::string> order_;  // of hosts, as they were first listed
  std::map<std::string, HostState> hosts_;
  std::map<int, Process> processes_;  // that have not ended
  int last_node_ = -1;
  int last_process_ = -1;
  int changes_ = 0;
  // Since a process was last there: whether one was killed, or a host lost.
  bool outside_cause_ = false;
  int whole_failures_ = 0;  // consecutive: no process was left
  Time whole_failure_at_{};
  bool begun_ = false;               // the first processes were started
  std::optional<Time> finished_at_;  // when the first finished process ended
  bool finish_requested_ = false;
  bool over_ = false;
  std::optional<Time> too_few_since_;
  Actions actions_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_DRIVER_H_
