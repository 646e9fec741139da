// ElasticJob: runs the hosts and processes of a job, elastic or fixed, for
// maypolerun.
//
// Purpose: carries out ElasticDriver's decisions: starts and stops nodes
// (ElasticNode) and processes on them, and reports events about them to the
// driver. Pure: JobLauncher has the nodes, the coordinator, the output and the
// signals.
//
//   JobLauncher --- events ---> ElasticJob ---> ElasticDriver
//        ^                          |  <--- actions ---'
//        `------- Launcher ---------'
//
// Processes are known by their numbers, which may have gaps: a process whose
// node is lost before it could start has a number but is never added.
//
// Thread contract: not synchronized. Only Continue() carries out actions; no
// event may call it.
#ifndef MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_
#define MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/command/options.h"
#include "client/launcher/elastic/elastic_driver.h"
#include "client/launcher/hosts/hosts.h"
#include "common/status.h"

namespace maypole::launcher {

// A node of a job, on this machine or another. Its loss is an event
// (ElasticJob::OnNodeLost).
class ElasticNode {
 public:
  virtual ~ElasticNode() = default;

  // Continues its start; returns true once processes may be started there.
  virtual bool Ready() = 0;
  // The state of a node that is not ready, for messages: "not ready".
  virtual std::string Standing() const = 0;
  // Its start takes too long: reports its loss with this reason.
  virtual void GiveUp(const std::string& why) = 0;
  virtual Status StartProcess(int process, int slot) = 0;
  virtual void SignalProcess(int process, int signal) = 0;
  // The node is no longer needed.
  virtual void Stop() = 0;
};

class ElasticJob {
 public:
  // What ElasticJob needs from its JobLauncher.
  struct Launcher {
    // The node's loss may be reported before this returns.
    std::function<std::shared_ptr<ElasticNode>(int node, const Host&)>
        start_node;
    std::chrono::seconds start_limit{0};  // until a node is ready
    std::function<Status(int process, const Host&, int node)> add_process;
    std::function<void(int process)> lose_process;  // with its node
    std::function<void(const std::string& line)> say;
    std::function<void(const std::string& why)> fail;  // the job
  };

  ElasticJob(const ElasticDriver::Settings& settings, Launcher launcher)
      : launcher_(std::move(launcher)), driver_(settings) {}

  void OnHosts(const std::vector<Host>& hosts, Time now);
  void OnNodeLost(int number, const std::string& why);
  // Returns whether its end makes the job fail.
  bool OnProcessEnd(int process, const Exit& exit, Time now);
  // Something is lost without which no process can continue.
  void OnJobLost(const std::string& why) { Take(driver_.OnJobLost(why)); }
  void Continue(Time now);
  std::optional<Time> deadline() const;
  // The job ends: later events have no consequences.
  void Stop() { stopped_ = true; }
  // True if nothing more is started: a process has trained to the end, the job
  // has failed or was stopped, or it is a fixed job whose processes were
  // started.
  bool ending() const {
    return stopped_ || finishing() || over() || driver_.filled();
  }
  bool finishing() const { return driver_.finishing(); }
  bool over() const { return driver_.over(); }

 private:
  struct Node {
    Host host;
    std::shared_ptr<ElasticNode> runner;  // null while start_node runs
    bool ready = false;
    Time ready_by{};
    std::string lost;  // why; empty: it is not lost
  };

  void CheckNodes(Time now);
  void CheckNode(int number, Node* node, Time now);
  void Lose(int number, Time now);
  void Take(ElasticDriver::Actions actions);
  void Do(const ElasticDriver::StartNode& start, Time now);
  void Do(const ElasticDriver::StopNode& stop, Time now);
  void Do(const ElasticDriver::StartProcess& start, Time now);
  void Do(const ElasticDriver::SignalProcess& signal, Time now);
  void Do(const ElasticDriver::Tell& tell, Time) { launcher_.say(tell.line); }
  void Do(const ElasticDriver::EndBadly& end, Time) { launcher_.fail(end.why); }

  const Launcher launcher_;
  ElasticDriver driver_;
  std::map<std::string, Host> hosts_;
  std::map<int, Node> nodes_;   // that live
  std::map<int, int> node_of_;  // of processes that live
  std::deque<ElasticDriver::Action> actions_;
  bool stopped_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_ELASTIC_ELASTIC_JOB_H_
