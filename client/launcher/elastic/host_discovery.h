// HostDiscovery: asks the user's program which hosts an elastic job may use
// (--host-discovery-script).
//
// Purpose: runs the program every kDiscoveryInterval, at most for
// kDiscoveryLimit, and reads the hosts that it prints: "HOST" or "HOST:SLOTS".
// If it fails or prints something else, the hosts stay as they were, and one
// line says so; the next such line comes only after a success. A separate
// thread finds out, once for each name, whether it means this machine: the name
// service may be slow. Until it has answered, the hosts stay as they were.
//
// Thread contract: not synchronized; all work except is_here is done in an
// OutputLoop.
#ifndef MAYPOLE_CLIENT_LAUNCHER_ELASTIC_HOST_DISCOVERY_H_
#define MAYPOLE_CLIENT_LAUNCHER_ELASTIC_HOST_DISCOVERY_H_

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/hosts/hosts.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/child_process.h"

namespace maypole::launcher {

inline constexpr std::chrono::seconds kDiscoveryInterval{1};
inline constexpr std::chrono::seconds kDiscoveryLimit{30};
// How often it checks whether the name service has answered.
inline constexpr std::chrono::milliseconds kNamesInterval{50};
inline constexpr size_t kMaxDiscoveryBytes = 1 << 20;  // of its output

// Finds what to run for --host-discovery-script: a program by its path or name
// or, if there is none of that name, a shell command such as "./hosts.sh --zone
// a". *arguments begins with the program's name. An error if there is neither.
Status FindDiscovery(const std::string& script, std::string* program,
                     std::vector<std::string>* arguments);

class HostDiscovery {
 public:
  struct Settings {
    std::string script;  // see FindDiscovery()
    int slots_per_host = 1;
    IsHere is_here;  // called by any thread
    std::function<void(const std::vector<Host>&)> on_hosts;
    std::function<void(const std::string& line)> say;
  };

  HostDiscovery(OutputLoop* loop, Settings settings)
      : loop_(loop), settings_(std::move(settings)) {}
  HostDiscovery(const HostDiscovery&) = delete;
  HostDiscovery& operator=(const HostDiscovery&) = delete;

  // Starts the program if it is due, and handles its end.
  void OnTime(Time now);
  Time deadline() const { return next_; }
  // Kills the program, if it runs. Do not call OnTime() after it.
  void Stop();

 private:
  void Start(Time now);
  void TakeHosts(Time now);
  Status ResolveNames(const std::vector<std::string>& names);
  void ReportProblem(const std::string& what);

  OutputLoop* const loop_;
  const Settings settings_;
  std::unique_ptr<ChildProcess> process_;
  std::optional<Exit> exit_;  // process_ has ended
  bool killed_ = false;       // process_ took too long
  std::string output_, errors_;
  std::map<std::string, bool> here_;  // by name
  std::string own_name_;  // the first name of this machine that was listed
  std::optional<std::future<std::map<std::string, bool>>> resolving_;
  Time next_{};  // start, or the end of process_'s time
  bool reported_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_ELASTIC_HOST_DISCOVERY_H_
