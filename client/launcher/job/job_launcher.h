// JobLauncher: one run of maypolerun, from the start of its daemons to the end
// of its last process.
//
// Purpose: the shell around Supervision. Runs in the supervisor process, the
// child of the guard (guard.h), which sends it the signals that maypolerun
// gets and removes the private directory afterwards. Nodes here are run by a
// NodeSupervisor, those on other hosts by a NodeSupervisor there, through a
// RemoteNode; both tell the same events.
//
// Thread contract: one thread; Run() once.
//
// Invariant: when Run() returns, no process started here lives.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_

#include <sys/resource.h>
#include <sys/signalfd.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/command/options.h"
#include "client/launcher/hosts/placement.h"
#include "client/launcher/job/early_leavers.h"
#include "client/launcher/job/supervision.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/node/remote_node.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/output/sink.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

// A job of one rank runs in process: no daemon is needed. Running agents have
// theirs.
inline bool StartsDaemons(const LauncherOptions& options) {
  return !options.running_agents &&
         (options.ranks > 1 || !options.coordinator.empty());
}

class JobLauncher {
 public:
  struct Settings {
    LauncherOptions options;
    std::string remote_program;  // of maypolerun on other hosts
    Supervised where;
  };

  explicit JobLauncher(Settings settings);
  ~JobLauncher();

  // The exit status of maypolerun.
  int Run();

 private:
  struct Rank {
    Place place;
    bool here = true;  // on this machine
    pid_t pid = 0;
    bool alive = false;
    std::unique_ptr<OutputStream> out, err;  // null: it writes where we do
  };

  Status Prepare();
  Status StartNodes();
  Status StartRemotes();
  // host: for messages; empty: here.
  NodeEvents EventsOf(const std::string& host);
  Status StartCoordinator(std::string* secret_file);
  Status TellNodes(const std::string& secret_file);
  NodeJob JobOf(int node, const RemoteNode* remote) const;
  std::vector<std::string> CoordinatorsFor(const RemoteNode* remote) const;
  Status WaitFor(bool (JobLauncher::*done)() const, Time deadline);
  bool NodesMayBeTold() const;
  bool NodesAreReady() const;
  std::string NotReady() const;
  const NodeCore::Daemon* Coordinator() const;  // ours; null: another's
  std::string AdminAddress() const;
  Status WriteEndpoints();
  Status StartRanks();
  Status OpenOutput(Rank* rank);
  void End();
  void ShowRest();
  void Report();
  void ShowLastWords(int rank);
  std::string Suspects() const;
  std::string Leavers() const;

  void Round(std::optional<Time> deadline);
  void OnSignal(const signalfd_siginfo& info);
  void OnRankStarted(int rank, pid_t pid);
  void OnRankEnded(Rank* rank, Exit exit);
  void OnDaemonLog(const std::string& daemon, std::string_view bytes);
  void OnHostLost(const RemoteNode& remote, const std::string& why);
  void GiveUpSilentHosts(Time now);
  void OnDaemonLost(const std::string& what);
  void OnFileLost(const std::string& what);
  void SignalRanks(int signal, bool from_terminal);
  void ForEachStream(const std::function<void(OutputStream&)>& f);
  bool RawOutput() const;
  void Say(const std::string& line);
  std::string Who(int rank) const;

  Settings settings_;
  const LauncherOptions& options_;
  OutputLoop loop_;
  Sink out_{1}, err_{2};
  Sink* err_sink_ = &err_;  // out_ if both are one file or terminal
  NodeSupervisor here_;
  bool hears_signals_ = false;
  NodeJob common_;      // of all nodes
  std::string secret_;  // of the coordinator, for other hosts
  std::vector<std::unique_ptr<RemoteNode>> remotes_;
  std::optional<Time> answer_by_;  // hosts that were told to kill their ranks
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::string, OutputStream> daemon_logs_;
  Supervision supervision_;
  EarlyLeavers leavers_;
  std::string lost_daemon_;  // what happened to it
  size_t lost_files_ = 0;    // of --output-filename, that end early
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_
