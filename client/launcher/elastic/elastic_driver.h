// ElasticDriver: decides on which hosts the processes of a job run, when one
// that has ended is started again, and when the job ends.
//
// Purpose: hosts come (from the list of the command line, or a discovery
// script), fail and go. Pure: events in, actions out. Which processes are in
// the job's epoch, and with which ranks, is the coordinator's decision
// (coordinator/core/membership/elastic.h). maypole.ray and maypole.spark decide
// by it, too (client/elastic_driver.h): a host is a Ray node there, or a Spark
// task.
//
//   host       entered when                          left when
//   kWanted    it is listed, or has no node          its node is started
//   kStarting  its node is started                   the node is ready, or lost
//   kReady     processes may run there               it fails, or is not listed
//   kCooling   its node or a process has failed;     the cool-down is over
//              nothing starts there
//   kLeaving   it is not listed any more             its processes have ended
//
// Processes of hosts that are not listed any more, or with fewer slots, get
// SIGTERM, at which they leave at their next commit, and SIGKILL after
// kLeaveGrace.
//
// Cool-down: the first failure costs the shortest one, each further one twice
// as much, up to the longest. What fails while the host cools down counts as
// one failure with the first: processes often end together. A host that has
// been well for kForgetAfter starts from the shortest again. So a host that
// flaps is put aside, also if it is not listed in between, and none for ever.
//
// Changes, which reset_limit counts: a failure of a process or a node; another
// list of hosts. That a host is not listed any more whose node was lost is
// none: its loss was.
//
// The job ends
//   well    when a process has ended with code 0 and all others have, too. (A
//           process that was asked to leave, by us or by others, has not ended
//           with code 0 but with that of SIGTERM.)
//           kFinishGrace after the first one, those that still run get SIGTERM
//           once: they may wait for an epoch that nobody starts any more. Those
//           that have finished training ignore it (maypole/common/elastic.py)
//   badly   when fewer than min_size processes could run for `patience`; when
//           there were more than reset_limit changes; when each host has failed
//           kHopeless times in a row within kShortLife and not by SIGKILL or
//           SIGTERM; when a process fails that has trained to the end, because
//           nobody begins the training again; when the caller says so
//           (OnJobLost)
// How a process ends that was asked to leave has no consequences, except that
// the training is over if it has trained to the end.
//
// A fixed job (Settings::fixed) is one where min = max and nobody is replaced:
// when the nodes of all hosts are ready, all processes are started, in the
// order of hosts and slots, so that a process has the number of its rank. The
// loss of a node before that ends the job badly. Afterwards the driver decides
// nothing: the caller knows what the end of a process means.
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
    // How the user knows them.
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
  // All processes must end now. After it there are no other actions.
  struct EndBadly {
    std::string why;
  };
  using Action = std::variant<StartNode, StopNode, StartProcess, SignalProcess,
                              Tell, EndBadly>;
  using Actions = std::vector<Action>;

  explicit ElasticDriver(const Settings& settings) : settings_(settings) {}

  // The hosts that may be used, in the order of preference.
  Actions OnHosts(const std::vector<HostSlots>& hosts, Time now);
  Actions OnNodeReady(int node, Time now);
  // The node is lost; its processes count as ended.
  Actions OnNodeLost(int node, const std::string& why, Time now);
  // *failed: whether its end makes the whole job fail. `how` completes
  // "process 3 (host a) ".
  Actions OnProcessEnd(int process, const Exit& exit, const std::string& how,
                       Time now, bool* failed);
  Actions OnProcessEnd(int process, const Exit& exit, Time now, bool* failed) {
    return OnProcessEnd(process, exit, Describe(exit), now, failed);
  }
  // Something is lost without which no process can go on.
  Actions OnJobLost(const std::string& why);
  Actions OnTime(Time now);
  std::optional<Time> deadline() const;

  // Whether some process has ended that had trained to the end: then no process
  // is started any more.
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
    int failures = 0;        // one after the other
    int short_failures = 0;  // the last so many were soon after a start
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
  void CheckHope(const std::string& what);
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
  bool begun_ = false;               // the first processes were started
  std::optional<Time> finished_at_;  // when the first process ended so
  bool finish_requested_ = false;
  bool over_ = false;
  std::optional<Time> too_few_since_;
  Actions actions_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_DRIVER_H_
