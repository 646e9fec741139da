// NodeSupervisor: runs what a node of a job needs: its agent, the coordinator
// where one is asked for, its ranks. The one place where maypolerun does so:
//
//   used by                      for                            its output
//   JobLauncher                  all nodes on this machine      event by event
//   NodeRunner                   the node of another host       frames (ssh)
//   NodeService                  daemons of other launchers'    a log file
//                                ranks
//
//   NodeSupervisor node(&loop, {.directory = d, .events = {...}});
//   Status s = node.Prepare(on_signal);
//   if (s.ok()) s = node.StartDaemon("coordinator", arguments);
//   if (s.ok()) s = node.AddNode(job, secret_file);  // starts its agent
//   ... the loop, until node.core().all_ready()
//   if (s.ok()) s = node.StartRanks();
//   ... the loop, until all ranks have ended
//   node.End();
//   while (!node.core().ended()) {
//     loop.Poll(node.deadline());
//     node.OnTime(now);
//   }
//
// It decides nothing about ranks: when and with which signal they are stopped
// is Supervision's, wherever that is. What it decides is NodeCore's.
//
// Thread contract: one thread, that of the loop. Events may call anything here
// but the destructor.
//
// Invariant: once core().ended(), no process started here lives, and none that
// those have left (if Prepare() took the signals).
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_

#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/launcher/hosts/placement.h"
#include "client/launcher/node/node_core.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/child_process.h"
#include "common/status.h"
#include "common/system/event_loop.h"
#include "proto/node.pb.h"

namespace maypole::launcher {

struct NodeEvents {
  std::function<void(int rank, pid_t pid)> on_rank_started;
  // stream: 0 is stdout, 1 is stderr. Empty: ranks write where we do.
  std::function<void(int rank, int stream, std::string_view)> on_rank_output;
  std::function<void(int rank, Exit exit)> on_rank_ended;
  std::function<void(const std::string& daemon, std::string_view)>
      on_daemon_log;
  // A sentence about a daemon that ended unasked.
  std::function<void(const std::string& what)> on_daemon_lost;
};

class NodeSupervisor {
 public:
  using OnSignal = std::function<void(const signalfd_siginfo&)>;
  struct Settings {
    std::string directory;     // private: for the agents' sockets
    bool gives_stdin = false;  // to rank 0
    pid_t terminal_group = 0;  // that may read from the terminal
    // Processes of ours that it has not started and shall not end.
    std::function<std::set<pid_t>()> others = {};
    NodeEvents events;
  };

  NodeSupervisor(OutputLoop* loop, Settings settings);
  NodeSupervisor(const NodeSupervisor&) = delete;
  NodeSupervisor& operator=(const NodeSupervisor&) = delete;

  // Allows this process as many open files as there may be; ranks get the
  // limit that we were given. With on_signal, it takes the signals that end
  // maypolerun, and orphans.
  Status Prepare(OnSignal on_signal);
  // The limit of open files that we were given.
  const rlimit& files() const { return files_; }

  // arguments[0] is the program's name: looked up beside maypolerun, then on
  // PATH.
  Status StartDaemon(const std::string& name,
                     const std::vector<std::string>& arguments);
  // From now on its end is no loss.
  void StopDaemon(const std::string& name, int signal);
  // A node that runs here. Finds or starts its agent, if it needs one.
  Status AddNode(NodeJob job, const std::string& secret_file);
  // Of all nodes that were added.
  Status StartRanks();
  // from_terminal: who is in its group has got the signal already.
  void SignalRanks(int signal, bool from_terminal);

  // Begins the end. False: some of the ranks' processes could not be ended.
  bool End();
  // From now on there is little time.
  void Hurry() { core_.Hurry(); }
  std::optional<Time> deadline() const { return core_.deadline(); }
  // Goes on with the end.
  void OnTime(Time now);

  const NodeCore& core() const { return core_; }
  // How a node's agent can be reached, for --verbose.
  std::string DescribeAgent() const;

 private:
  struct Node {
    NodeJob job;
    std::string program;  // path of its command
    std::string agent;    // socket; empty: none is needed
  };
  struct Daemon {
    std::string name;
    ChildProcess process;
  };
  struct Rank {
    int rank;
    bool foreground;  // in terminal_group
    ChildProcess process;
  };

  void OnSignals();
  Status StartAgent(Node* node, const std::string& secret_file);
  Status StartRanks(const Node& node, int ranks_here);
  Status StartRank(const Node& node, const JobEnvironment& job,
                   const Place& place);
  std::set<pid_t> Daemons() const;
  std::set<pid_t> Known() const;
  void KillAllBut(const std::set<pid_t>& keep);
  bool OutputEnded() const;

  OutputLoop* loop_;
  const Settings settings_;
  NodeCore core_;
  rlimit files_ = {};
  OnSignal on_signal_;
  WatchedFd signals_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_SUPERVISOR_H_
