// NodeSupervisor: starts, signals and ends the processes of a job on this
// machine: agents, ranks and, if the caller starts one, the coordinator. All
// parts of maypolerun use it:
//
//   used by                      for                            output goes to
//   JobLauncher                  all nodes on this machine      the user
//   NodeRunner                   the node of another host       frames (ssh)
//   NodeService                  daemons for ranks of other     a log file
//                                launchers
//
//   NodeSupervisor node(&loop, {.directory = d, .listener = this});
//   Status s = node.Prepare(on_signal);
//   if (s.ok()) s = node.StartDaemon(kCoordinatorName, arguments);
//   if (s.ok()) s = node.AddNode(job, secret_file);  // starts its agent
//   ... run the loop until node.core().all_ready()
//   if (s.ok()) s = node.StartProcess(job.node(), rank, slot);
//   ... run the loop until all ranks have ended
//   node.End();
//   while (!node.core().ended()) {
//     loop.Poll(node.deadline());
//     node.OnTime(now);
//   }
//
// It makes no decisions about ranks: Supervision decides when they are stopped
// and with which signal. Its decisions about daemons and the end are
// NodeCore's.
//
// Thread contract: one thread, the one that runs the loop.
//
// Invariant: once core().ended(), no process that it started is alive, and none
// that those processes left behind (if Prepare() got on_signal). Other
// processes of the loop are not touched.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_

#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/hosts/placement.h"
#include "client/launcher/node/node_core.h"
#include "client/launcher/node/node_listener.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/announcement.h"
#include "client/launcher/process/child_process.h"
#include "common/status.h"
#include "common/system/event_loop.h"
#include "proto/node.pb.h"

namespace maypole::launcher {

// Why a node of an elastic job is lost when AgentIsLost().
inline constexpr char kAgentLost[] = "its agent has ended";

class NodeSupervisor {
 public:
  using OnSignal = std::function<void(const signalfd_siginfo&)>;
  struct Settings {
    std::string directory;     // private; for the agents' sockets
    bool gives_stdin = false;  // rank 0 inherits our stdin
    bool raw_output = false;   // ranks inherit our stdout and stderr
    pid_t terminal_group = 0;  // process group that may read the terminal
    // Whether the job's agents on other hosts have ended; our coordinator waits
    // for them.
    std::function<bool()> others_ended = {};
    NodeListener* listener;
  };

  NodeSupervisor(OutputLoop* loop, Settings settings);
  NodeSupervisor(const NodeSupervisor&) = delete;
  NodeSupervisor& operator=(const NodeSupervisor&) = delete;

  // Raises this process's limit of open files to the hard limit; ranks get the
  // original limit. With on_signal, it also handles the signals that end
  // maypolerun, and reaps orphans.
  Status Prepare(OnSignal on_signal);
  const std::string& directory() const { return settings_.directory; }
  // The limit of open files that this process was started with.
  const rlimit& files() const { return files_; }

  // arguments[0] is the program's name: looked up beside maypolerun, then on
  // PATH. A coordinator that dies is restarted at its address, where the
  // executors report their jobs to it (docs/recovery.md). One that ends in good
  // order, as after SIGTERM, has ended the jobs and is not restarted.
  Status StartDaemon(const std::string& name,
                     const std::vector<std::string>& arguments);
  // Our coordinator has ended and is not restarted.
  bool CoordinatorIsLost() const { return coordinator_.lost; }
  // Sends the signal; from now on the daemon's end is not a loss.
  void StopDaemon(const std::string& name, int signal);
  // Adds a node that runs on this machine. Finds or starts its agent, if it
  // needs one.
  Status AddNode(NodeJob job, const std::string& secret_file);
  // Starts a rank, or a process of an elastic job. `node` was added; unless the
  // job is elastic, so were all other nodes of this machine. slot: of the node.
  Status StartProcess(int node, int number, int slot);
  // The node's agent, which is restarted if it ends in an elastic job; null if
  // the node has no agent of its own.
  const NodeCore::Daemon* AgentOf(int node);
  // The node's agent has ended and is not restarted: no process there can join
  // an elastic job from now on.
  bool AgentIsLost(int node);
  void StopAgent(int node);
  // from_terminal: the terminal has sent the signal to its foreground group;
  // ranks in that group do not get it a second time.
  void SignalRanks(int signal, bool from_terminal);
  void SignalRank(int rank, int signal);

  // Begins the end. Returns the ranks' processes that SIGKILL has not ended.
  std::vector<pid_t> End();
  // From now on the end has the shorter limits of EndLimit.
  void Hurry() { core_.Hurry(); }
  std::optional<Time> deadline() const;
  // Continues the end, and restarts daemons.
  void OnTime(Time now);

  const NodeCore& core() const { return core_; }
  // How the agent of the (first) node can be reached, for --verbose.
  std::string DescribeAgent() const;

 private:
  // The lives of a daemon that is restarted.
  struct Lives {
    int restarts = 0;
    int failed = 0;  // consecutive restarts
    std::optional<Time> restart_at = {};
    bool lost = false;

    // It has died. Plans the restart, or gives up. was_ready: it had been
    // ready.
    void PlanRestart(bool was_ready);
    // Whether the restart is due; if so, counts it as done.
    bool TakeRestart(Time now);
  };
  struct Node {
    NodeJob job;
    std::string program;  // path of the ranks' program
    std::string agent;    // its agent's socket; empty: no agent is needed
    WorkerSettings worker = {};  // of the agent that we have started
    Lives lives = {};            // of the agent of an elastic job
  };
  struct Daemon {
    std::string name;
    ChildProcess process;
  };
  struct Rank {
    int rank;
    bool foreground;  // it is in terminal_group
    ChildProcess process;
  };

  void OnSignals();
  void OnAnnounce(const std::string& daemon, std::string_view bytes);
  // Null: there is none.
  Node* Find(int node);
  Node* NodeOf(const std::string& agent);
  Status StartAgent(Node* node, const std::string& secret_file);
  // A daemon has died. Plans its restart if it is the coordinator, or the agent
  // of an elastic job; returns whether it will be restarted.
  bool StartsAgain(const std::string& name, const Exit& exit);
  void Restart(const std::string& name,
               const std::vector<std::string>& arguments, Lives* lives);
  void RestartDaemons(Time now);
  Status EnvironmentOf(const Node& node, int rank, int slot,
                       std::vector<std::string>* out) const;
  // Whether the process, which has ended, had trained to the end.
  bool HasFinished(int process) const;
  bool OutputEnded() const;
  void Take(NodeCore::Step step);  // of the end

  OutputLoop* loop_;
  const Settings settings_;
  NodeCore core_;
  rlimit files_ = {};
  OnSignal on_signal_;
  WatchedFd signals_;
  std::vector<std::string> coordinator_arguments_;
  Lives coordinator_;
  std::map<int, Node> nodes_;  // by number
  std::vector<std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_
