// JobLauncher: one run of maypolerun, from the start of its daemons to the end
// of its last process.
//
// Purpose: performs the I/O around Supervision. It runs in the supervisor
// process, the child of the guard (guard.h). The guard forwards the signals
// that maypolerun gets, and removes the private directory at the end. A
// NodeSupervisor runs the nodes on this machine; for each other host, a
// RemoteNode talks to a NodeSupervisor there. Both report the same NodeEvents.
//
// Thread contract: one thread; call Run() once.
//
// Invariant: when Run() returns, no process that it started is alive.
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
#include "client/launcher/elastic/elastic_job.h"
#include "client/launcher/elastic/host_discovery.h"
#include "client/launcher/hosts/placement.h"
#include "client/launcher/job/early_leavers.h"
#include "client/launcher/job/start_progress.h"
#include "client/launcher/job/supervision.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/node/remote_node.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/output/sink.h"
#include "client/launcher/process/guard.h"

namespace maypole::launcher {

// Whether maypolerun starts daemons. A job of one rank needs none, and agents
// that already run (--agent) have their own coordinator.
inline bool StartsDaemons(const LauncherOptions& options) {
  return !options.running_agents &&
         (options.ranks > 1 || options.elastic || !options.coordinator.empty());
}

class JobLauncher {
 public:
  struct Settings {
    LauncherOptions options;
    std::string remote_program;  // path of maypolerun on other hosts
    Supervised where;
  };

  explicit JobLauncher(Settings settings);
  ~JobLauncher();

  // Returns the exit status of maypolerun.
  int Run();

 private:
  struct Rank {
    Place place;
    std::string host;
    bool here = true;  // on this machine
    pid_t pid = 0;
    bool alive = false;
    bool joined = false;  // has called init()
    // Null: the rank inherits our stdout and stderr, or has been replaced.
    std::unique_ptr<OutputStream> out, err;
  };

  Status Prepare();
  std::string TorchStore() const;
  Status DescribeJob();
  Status StartNodes();
  Status StartRemotes();
  std::vector<RemoteNode*> Remotes() const;
  bool AwaitsHosts() const;  // some node of another host has not ended
  std::unique_ptr<RemoteNode> Connect(const Host& host, int node,
                                      int first_rank, RemoteNode::OnLost lost);
  // Starts ssh, and sends it the function that ranks run, if there is one.
  Status Begin(RemoteNode* remote) const;
  NodeJob JobOfRemote(NodeJob job, const RemoteNode& remote) const;
  // host: used in messages; empty: this machine.
  NodeEvents EventsOf(const std::string& host);
  Status StartCoordinator(std::string* secret_file);
  Status TellNodes(const std::string& secret_file);
  NodeJob JobOf(int node, const RemoteNode* remote) const;
  std::vector<std::string> CoordinatorsFor(const RemoteNode* remote) const;
  bool HasOtherHosts() const;
  void SetCoordinators(const RemoteNode* remote, NodeJob* job) const;
  Status WaitFor(bool (JobLauncher::*done)() const, Time deadline);
  bool NodesMayBeTold() const;
  bool NodesAreReady() const;
  std::vector<std::string> NotReady() const;
  // The coordinator that we started; null if the job uses another one.
  const NodeCore::Daemon* Coordinator() const;
  std::string AdminAddress() const;
  Status WriteEndpoints();
  Status StartRanks();
  Status StartElastic();
  ElasticJob::Launcher ElasticLauncher(const std::string& secret_file);
  std::unique_ptr<ElasticNode> StartElasticNode(int node, const Host& host,
                                                const std::string& secret_file);
  NodeJob ElasticJobOf(int node, const Host& host,
                       const RemoteNode* remote) const;
  void ContinueElastic(Time now);
  void StopElastic();
  Status AddProcess(int process, const Host& host, int node);
  void LoseProcess(int process);
  void CloseOutput(Rank* rank);
  bool Over() const;
  Status OpenOutput(Rank* rank);
  void End();
  void ShowRest();
  // How the job failed; empty if it did not, or was interrupted.
  std::string Cause() const;
  void Report();
  void WriteOutcome(const Status& start);
  void ShowLastWords(int rank);
  std::string AlsoKilled() const;
  std::string Suspects() const;
  std::string Leavers() const;

  void Round(std::optional<Time> deadline);
  void OnSignal(const signalfd_siginfo& info);
  void OnRankStarted(int rank, pid_t pid);
  void OnRankEnded(int rank, Exit exit);
  void OnRankJoined(int rank);
  void ShowStart(Time now);
  std::string DescribeStart() const;
  void EndStart(const std::string& text);
  void StopStart();
  void OnResult(int rank, std::string_view bytes);
  void OnDaemonLog(const std::string& daemon, std::string_view bytes);
  void OnHostLost(const RemoteNode& remote, const std::string& why);
  void GiveUpSilentHosts(Time now);
  void OnDaemonLost(const std::string& what, bool returns);
  void OnElasticDaemonLost(const std::string& what);
  void OnFileLost(const std::string& what);
  void TellLostOutput();
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
  NodeJob common_;          // the fields that are the same for all nodes
  std::string secret_;      // of the coordinator, for other hosts
  std::string directory_;   // the ranks' current one
  int remote_streams_ = 0;  // of ssh's stderr
  // Elastic: until ssh has ended, and shared with their ElasticNodes.
  std::vector<std::shared_ptr<RemoteNode>> remotes_;
  // When hosts that were told to kill their ranks must have reported the end.
  std::optional<Time> answer_by_;
  std::map<int, Rank> ranks_;  // by number; elastic: of the process
  std::map<std::string, OutputStream> daemon_logs_;
  Supervision supervision_;
  EarlyLeavers leavers_;
  StartProgress start_;
  int awaited_ = 0;  // ranks that have not called init(), once they run
  std::optional<ElasticJob> elastic_;
  std::optional<HostDiscovery> discovery_;  // of elastic_
  std::string lost_daemon_;  // how the first lost daemon ended; empty: none
  size_t lost_files_ = 0;    // files of --output-filename that end early
  bool told_lost_output_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_JOB_LAUNCHER_H_
