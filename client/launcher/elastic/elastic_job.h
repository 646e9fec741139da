// ElasticJob: the hosts and processes of an elastic job, as maypolerun runs
// them.
//
// Purpose: carries out what ElasticDriver decides: starts and stops nodes on
// this machine (NodeSupervisor) and on others (RemoteNode), and processes on
// them, and tells it what becomes of them. A part of JobLauncher, which has
// the coordinator, the output and the signals.
//
//   JobLauncher --- events ---> ElasticJob ---> ElasticDriver
//        ^                          |  <--- actions ---'
//        `------- Launcher ---------'
//
// Thread contract: one thread, the one that runs the loop. Actions are carried
// out in Continue() only, which is not called by an event.
#ifndef MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_
#define MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/command/options.h"
#include "client/launcher/elastic/elastic_driver.h"
#include "client/launcher/elastic/host_discovery.h"
#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/node/remote_node.h"

namespace maypole::launcher {

class ElasticJob {
 public:
  // What it needs of its JobLauncher.
  struct Launcher {
    NodeSupervisor* here = nullptr;
    // Connects to another host; it starts at once.
    std::function<std::unique_ptr<RemoteNode>(const Host&, int node,
                                              RemoteNode::OnLost)>
        connect;
    // The node's description; remote: null on this machine.
    std::function<NodeJob(int node, const Host&, const RemoteNode* remote)>
        describe;
    std::chrono::seconds start_limit{0};  // until a node is ready
    std::string secret_file;  // of the coordinator, for nodes of this machine
    std::function<Status(int process, const Host&, int node)> add_process;
    std::function<void(int process)> lose_process;  // with its node
    std::function<void(const std::string& line)> say;
    std::function<void(const std::string& why)> fail;  // the job
  };

  ElasticJob(const ElasticOptions& options, int first_size, OutputLoop* loop,
             IsHere is_here, Launcher launcher);

  // Returns whether its end makes the job fail.
  bool OnProcessEnd(int process, const Exit& exit);
  // Something is lost without which no process can go on.
  void OnJobLost(const std::string& why) { Take(driver_.OnJobLost(why)); }
  void Continue(Time now);
  std::optional<Time> deadline() const;
  // The job ends: whatever happens now has no consequences.
  void Stop();
  // Some process has ended well, or the job has failed.
  bool ending() const { return driver_.finishing() || driver_.over(); }
  // The other hosts, until their ssh has ended.
  std::vector<RemoteNode*> remotes() const;
  // Of the discovery script; 0: it does not run.
  pid_t script() const { return discovery_ ? discovery_->pid() : 0; }

 private:
  struct Node {
    Host host;
    std::unique_ptr<RemoteNode> remote;  // null: on this machine
    bool told = false;                   // has got its NodeJob
    bool ready = false;
    Time ready_by{};
    std::set<int> processes;
    std::string lost;  // why; empty: it is not
  };

  void OnHosts(const std::vector<Host>& hosts, Time now);
  void OnLost(int number, const std::string& why);
  void LookAtNodes(Time now);
  void LookAt(int number, Node* node, Time now);
  void GiveUp(int number, Node* node);
  void Lose(int number, Time now);
  void Take(ElasticDriver::Actions actions);
  void Do(const ElasticDriver::StartNode& start);
  void Do(const ElasticDriver::StopNode& stop);
  void Do(const ElasticDriver::StartProcess& start);
  void Do(const ElasticDriver::SignalProcess& signal);
  void Do(const ElasticDriver::Tell& tell) { launcher_.say(tell.line); }
  void Do(const ElasticDriver::EndBadly& end) { launcher_.fail(end.why); }

  const Launcher launcher_;
  ElasticDriver driver_;
  std::optional<HostDiscovery> discovery_;
  std::vector<Host> fixed_hosts_;
  std::map<std::string, Host> hosts_;
  std::string here_;           // the first name of this machine that was listed
  std::map<int, Node> nodes_;  // that live
  std::map<int, int> node_of_;                         // of processes that live
  std::vector<std::unique_ptr<RemoteNode>> finished_;  // until ssh has ended
  std::deque<ElasticDriver::Action> actions_;
  bool begun_ = false;
  bool stopped_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_
