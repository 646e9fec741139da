// Launcher: maypolerun's part of an elastic job
// (client/launcher/elastic/elastic_job.h), on the simulation's clock.
//
// Purpose: passes events to the real ElasticJob, and the job's acts to the
// world. It checks each act against its own record of which hosts are listed,
// what runs there, and what has failed. As in maypolerun, several events may
// come before the job acts. Then a right act may look wrong, so the check finds
// only acts that are never right.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_LAUNCHER_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/elastic/elastic_job.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

class Launcher {
 public:
  using Driver = launcher::ElasticDriver;
  struct Hands {  // carry out what is decided
    std::function<void(const Driver::StartNode&)> start_node;
    std::function<void(int node)> stop_node;
    std::function<void(const Driver::StartProcess&)> start_process;
    std::function<void(int process, int signal)> signal;
    std::function<void(const std::string& why)> end_badly;
  };

  Launcher(Stage* stage, const Driver::Settings& settings, Hands hands);

  void OnHosts(const std::vector<launcher::HostSlots>& hosts);
  void OnNodeReady(int node);
  void OnNodeLost(int node, const std::string& why);
  void OnProcessEnd(int process, const launcher::Exit& exit);

  // All processes have ended: it starts nothing any more, and waits for no
  // node.
  void Stop() { job_.Stop(); }

  bool finishing() const { return job_.finishing(); }
  bool over() const { return job_.over(); }
  int running() const { return static_cast<int>(processes_.size()); }
  const Driver::Settings& settings() const { return settings_; }

 private:
  struct Host {
    int slots = 0;
    bool listed = false;
    int node = -1;  // its last life, while it lives
    bool ready = false;
    bool leaving = false;    // has not been listed at some time of this life
    int64_t cool_until = 0;  // at least
    int failures = 0;
  };
  struct Running {
    std::string host;
    int slot = 0;
    int64_t asked_at = -1;  // to leave, at the latest
  };

  class Node;

  launcher::ElasticJob::Launcher MakeLauncher();
  launcher::Time Now() const;
  void NoteEvent();
  void Continue();
  std::unique_ptr<launcher::ElasticNode> StartNode(int number,
                                                   const launcher::Host& h);
  void StopNode(int number);
  void NoteLoss(int number);
  Status AddProcess(int number, int node);
  void StartProcess(const Driver::StartProcess& start);
  void Signal(int number, int signal);
  void EndBadly(const std::string& why);
  void NoteFailure(const std::string& host);
  void NoteChange();
  void NoteSize();
  bool HasFailedOftenEverywhere() const;
  Host* HostOf(int node);
  void AskForTime();

  Stage* const stage_;
  const Driver::Settings settings_;
  const Hands hands_;
  launcher::ElasticJob job_;
  Turn timer_;
  int events_ = 0;  // since the job has acted
  std::map<std::string, Host> hosts_;
  std::map<int, std::string> nodes_;  // the hosts of all lives
  std::set<int> ready_;               // of nodes_
  std::map<int, std::string> lost_;   // of nodes_: not acted upon yet; why
  std::set<int> added_;               // processes
  std::map<int, Running> processes_;  // that have not ended
  int changes_ = 0;                   // that --reset-limit counts
  int unsure_changes_ = 0;  // the job may have decided more than it has done
  bool begun_ = false;
  int64_t last_enough_;  // when min_size processes ran, or the start
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_LAUNCHER_H_
