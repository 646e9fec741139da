// Job: one run of maypolerun, from the start of its daemons to the end of its
// last process.
//
// Purpose: the shell around Supervision. Runs in the supervisor process, the
// child of the guard (guard.h), which sends it the signals that maypolerun
// gets and removes the private directory afterwards. Ranks on other hosts are
// reached through RemoteNodes; apart from that they are ranks as those here.
//
// Thread contract: one thread; Run() once.
//
// Invariant: when Run() returns, no process started here lives.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_H_

#include <sys/resource.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/daemons.h"
#include "client/launcher/early_leavers.h"
#include "client/launcher/events.h"
#include "client/launcher/guard.h"
#include "client/launcher/options.h"
#include "client/launcher/output_stream.h"
#include "client/launcher/placement.h"
#include "client/launcher/process.h"
#include "client/launcher/remote_node.h"
#include "client/launcher/sink.h"
#include "client/launcher/supervision.h"

namespace maypole::launcher {

// A job of one rank runs in process: no daemon is needed. Running agents have
// theirs.
inline bool StartsDaemons(const Options& options) {
  return !options.running_agents &&
         (options.ranks > 1 || !options.coordinator.empty());
}

class Job {
 public:
  struct Settings {
    Options options;
    std::string program;  // the path of options.command[0]; for ranks here
    std::string remote_program;  // of maypolerun on other hosts
    Supervised where;
  };

  explicit Job(Settings settings);
  ~Job();

  // The exit status of maypolerun.
  int Run();

 private:
  struct Rank {
    Place place;
    RemoteNode* remote = nullptr;  // its host, if that is another
    pid_t pid = 0;
    Child child;  // if it runs here
    EventLoop::WatchId watch = 0;
    bool alive = false;
    bool foreground = false;  // in the guard's process group, for the terminal
    std::unique_ptr<OutputStream> out, err;
  };

  Status Prepare();
  Status StartNodes();
  Status StartRemotes();
  RemoteNode::Events EventsOf(size_t remote);
  Status StartCoordinator(std::string* secret_file);
  Status StartAgents(const std::string& secret_file);
  Status TellRemotes();
  std::vector<std::string> CoordinatorsFor(const RemoteNode* remote) const;
  Status Network(int node, std::string* network) const;
  Status WaitFor(bool (Job::*done)() const, Time deadline);
  bool NodesMayBeTold() const;
  bool NodesAreReady() const;
  std::string NotReady() const;
  std::string AdminAddress() const;
  Status WriteEndpoints();
  Status StartRanks();
  Status StartRank(Rank* rank);
  Status OpenOutput(Rank* rank, Fd* out, Fd* err);
  void EndRanks();
  void EndDaemons();
  void ShowRest();
  void Report();
  void ShowLastWords(int rank);
  std::string Suspects() const;

  void Round(std::optional<Time> deadline);
  void OnSignals();
  void OnRankEnd(Rank* rank);
  void OnRankEnded(Rank* rank, Exit exit);
  void OnHostLost(const RemoteNode& remote, const std::string& why);
  void GiveUpSilentHosts(Time now);
  void OnDaemonLost(const std::string& what);
  void OnFileLost(const std::string& what);
  void SignalRanks(int signal, bool from_terminal);
  std::set<pid_t> KnownProcesses() const;
  bool RawOutput() const;
  Sink* ErrSink() { return err_sink_; }
  void Say(const std::string& line);
  std::string Who(int rank) const;

  Settings settings_;
  const Options& options_;
  Sink out_{1}, err_{2};
  Sink* err_sink_ = &err_;  // out_ if both are one file or terminal
  EventLoop loop_;
  Fd signals_;
  rlimit files_ = {};
  JobEnvironment environment_;  // of all ranks
  std::string secret_;          // of the coordinator, for other hosts
  std::unique_ptr<Daemons> daemons_;
  std::vector<std::unique_ptr<RemoteNode>> remotes_;
  std::optional<Time> answer_by_;  // hosts that were told to kill their ranks
  std::vector<std::unique_ptr<Rank>> ranks_;
  Supervision supervision_;
  EarlyLeavers leavers_;
  std::string lost_daemon_;  // what happened to it
  size_t lost_files_ = 0;    // of --output-filename, that end early
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_H_
