// JobNodes: the coordinator and the nodes of a job, on this machine and on
// other hosts.
//
// Purpose: describes the job for each node (NodeJob), starts the coordinator
// and the nodes that ElasticJob asks for, and passes on what concerns all of
// them: signals, Hurry(), the end. A NodeSupervisor runs the nodes on this
// machine; for each other host, a RemoteNode talks to a NodeSupervisor there.
// Both report to the same NodeListener.
//
//   JobNodes nodes(&loop, options, where, &output, listener);
//   Status s = nodes.Prepare(on_signal);
//   if (s.ok()) s = nodes.StartCoordinator();
//   ... run the loop until nodes.coordinator_ready()
//   auto node = nodes.StartNode(0, host, on_lost);  // see ElasticNode
//   ... run the loop until all ranks have ended
//   nodes.End();
//   while (!nodes.ended(now)) ...  // not later than nodes.deadline()
//
// Thread contract: not synchronized; all work is done in an OutputLoop. Call
// OnTime() in each round.
//
// Invariant: after Close(), no process that it started is alive.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_NODES_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_NODES_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/launcher/command/options.h"
#include "client/launcher/elastic/elastic_job.h"
#include "client/launcher/job/job_output.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/node/remote_node.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

// Whether maypolerun starts daemons. A job of one rank needs none, and agents
// that already run (--agent) have their own coordinator.
inline bool StartsDaemons(const LauncherOptions& options) {
  return !options.running_agents &&
         (options.ranks > 1 || options.elastic || !options.coordinator.empty());
}

class JobNodes {
 public:
  using OnLost = std::function<void(const std::string& why)>;

  // All of them must outlive the JobNodes.
  JobNodes(OutputLoop* loop, const LauncherOptions& options,
           const Supervised& where, JobOutput* output, NodeListener* listener);

  Status Prepare(NodeSupervisor::OnSignal on_signal) {
    return here_.Prepare(std::move(on_signal));
  }
  // Starts the coordinator, or reads the secret of the one that the job uses.
  Status StartCoordinator();
  bool coordinator_ready() const { return here_.core().all_ready(); }
  bool coordinator_lost() const { return here_.CoordinatorIsLost(); }
  // on_lost: called at most once, possibly before this returns.
  std::shared_ptr<ElasticNode> StartNode(int node, const Host& host,
                                         OnLost on_lost);
  // The daemons and hosts that are awaited at the start, for a message.
  std::vector<std::string> NotReady() const;
  // The lines for --verbose, once all nodes are ready.
  std::vector<std::string> Summary() const;
  Status WriteEndpoints() const;

  // from_terminal: see NodeSupervisor::SignalRanks().
  void SignalRanks(int signal, bool from_terminal);
  // maypolerun is being interrupted: from now on limits are shorter.
  void Hurry();

  std::optional<Time> deadline() const;
  void OnTime(Time now);
  // Begins the end. Returns the ranks' processes that SIGKILL has not ended.
  std::vector<pid_t> End();
  bool ended(Time now) const;
  // Kills what has not ended in time.
  void Close();
  // The limit's current value.
  std::chrono::milliseconds Within(const EndLimit& limit) const {
    return here_.core().Within(limit);
  }

 private:
  class NodeHere;

  Status Describe();
  std::string TorchStore() const;
  // Null: of this machine.
  NodeJob JobOf(int node, const Host& host, const RemoteNode* remote) const;
  std::vector<std::string> CoordinatorsFor(const RemoteNode* remote) const;
  bool HasOtherHosts() const;
  bool AllGreeted() const;
  bool AwaitsHosts() const;  // some node of another host has not ended
  void GiveUpSilentHosts(Time now);
  // The coordinator that we started; null if the job uses another one.
  const NodeCore::Daemon* Coordinator() const;
  std::string AdminAddress() const;

  OutputLoop* const loop_;
  const LauncherOptions& options_;
  JobOutput* const output_;
  NodeListener* const listener_;
  const std::string remote_program_;  // path of maypolerun on other hosts
  NodeSupervisor here_;
  NodeJob common_;           // the fields that are the same for all nodes
  std::string secret_file_;  // of the coordinator
  std::string secret_;       // in that file, for other hosts
  std::vector<std::shared_ptr<RemoteNode>> remotes_;  // until ssh has ended
  int streams_ = 0;  // of ssh's stderr, that were used
  // By when hosts that were asked to kill their ranks must have reported the
  // end.
  std::optional<Time> answer_by_;
  std::optional<Time> end_began_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_NODES_H_
