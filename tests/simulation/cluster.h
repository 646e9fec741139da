// Cluster: the machines of one simulated run, whatever job runs there: the
// nodes with their executors, the coordinator, and the faults that hit them.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_CLUSTER_H_
#define MAYPOLE_TESTS_SIMULATION_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/ledger.h"
#include "tests/simulation/parts/backend.h"
#include "tests/simulation/parts/coordinator.h"
#include "tests/simulation/parts/executor.h"
#include "tests/simulation/parts/process.h"
#include "tests/simulation/stage.h"
#include "tests/simulation/timeline/operator.h"
#include "tests/simulation/world.h"

namespace maypole::simulation {

inline constexpr uint64_t kMostSteps = 2000000;
// The time after the last fault by which its consequences have been noticed.
inline constexpr int64_t kSettleTime = 9 * kSecond;
// A known death must reach all ranks within a second.
inline constexpr int64_t kSoon = 1300 * kMillisecond;
inline constexpr int64_t kResumeTimeout = 3 * kSecond;

class Cluster : public Surroundings {
 public:
  explicit Cluster(const RunOptions& options);

  void Connect(int node, std::shared_ptr<Connection> connection,
               const session::Hello& hello) override;
  Interruption* interruption() override { return &interruption_; }

 protected:
  using Processes = std::vector<std::shared_ptr<Process>>;
  struct Node {
    std::shared_ptr<Executor> executor;
    // Whose agent has died since: they serve their ranks to the end.
    std::vector<std::shared_ptr<Executor>> orphans;
    worker::ExecutorCoreOptions core;
    bool agent = true;  // is there
  };

  // Brings about something bad; false: it cannot happen now.
  using Fault = std::function<bool()>;

  // Those that live; null: none at this place now.
  virtual const Processes& processes() const = 0;
  // It will be cut off for longer than the coordinator waits for it.
  virtual void OnNodeLost(int /*node*/) {}

  void MakeCoordinator(const coordinator::Config& config, int nodes);
  // The options that all nodes have.
  worker::ExecutorCoreOptions SomeOptions();
  void AddNode(const worker::ExecutorCoreOptions& common,
               const std::string& host);
  // Brings things up to date; call it after every event.
  void LookAround();
  // SIGKILL.
  void Kill(const std::shared_ptr<Process>& process);
  // Of several of the node, the one of its present agent.
  bool KillExecutor(size_t node);
  void KillOrphans(size_t node);
  // Its executor serves its ranks to the end.
  void LoseAgent(size_t node);
  // It is started again with the node's name, as systemd does.
  bool RestartAgent(size_t node);
  // It comes back after `most_away` at most.
  bool KillCoordinator(int64_t most_away = 6 * kSecond);
  bool CutLink(size_t node);
  bool FailBackend(size_t node);
  bool FreezeRank(const std::shared_ptr<Process>& process);
  bool KillInTurn(const std::shared_ptr<Process>& process);
  // Up to `limit` - 1 of `all`, at random, for BringFault().
  void ScheduleFaults(const std::vector<Fault>& all, uint64_t limit);
  // The same fault `times` times, after few steps each.
  void ScheduleOften(const Fault& fault, uint64_t times);
  // Brings about the next fault if it is due; returns whether it has happened,
  // or was given up because it has been impossible so often.
  bool BringFault();
  // Checks that operations pending now have ended after `time`, unless another
  // fault happens by then.
  void ExpectEnds(EpochRecord* epoch, int64_t time, const std::string& why);
  void Disturb(int64_t until);
  void NotCalmYet() {
    calm_at_ = std::max(calm_at_, stage_.scheduler.now() + kSettleTime);
  }
  // grace: after it, no rank may be known any more.
  void CheckNothingIsLeft(int64_t grace = 2 * kSecond);
  void Hangs(const std::string& why);
  RunResult Result();

  Stage stage_;
  Random& random_;
  Ledger ledger_;
  Fabric fabric_;
  Interruption interruption_;
  const uint32_t slots_;
  const bool timelines_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Operator> operator_;  // null: there is none
  std::vector<Node> nodes_;
  std::vector<Fault> faults_;  // still to come; the next one is at the back
  int64_t disturbed_at_ = -1;  // the last time that something was
  int64_t calm_at_ = 0;

 private:
  Executor* ExecutorOf(int node);
  void CheckAllHaveLeft();
  static void DropIfDone(std::shared_ptr<Executor>* executor);

  uint64_t next_fault_ = 0;    // step
  int64_t most_steps_ = 2000;  // from one fault to the next
  int tries_ = 0;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_CLUSTER_H_
