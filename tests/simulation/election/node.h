// ElectionNode: an executor with one rank, in a world of several coordinators:
// the real ExecutorCore, CoordinatorSession and CoordinatorChoice.
//
// Purpose: dials the coordinators in turn, as GrpcTransport does, and plays the
// rank: it enters the job's epoch, submits the operations of one step after the
// other, and starts again if the epoch ends. There is no board and no network
// between nodes: an operation is executed when its run is issued here.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_ELECTION_NODE_H_
#define MAYPOLE_TESTS_SIMULATION_ELECTION_NODE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/election/candidate.h"
#include "worker/core/executor_core.h"
#include "worker/network/coordinator_choice.h"
#include "worker/network/session.h"

namespace maypole::simulation {

inline constexpr int kElectionNames = 3;

// What the nodes of a job have executed, by epoch.
struct ElectionLedger {
  // Names in the order of their runs, as the first node has executed them.
  std::map<uint64_t, std::vector<std::string>> runs;
  std::set<uint64_t> ended;  // epochs
  uint64_t executed = 0;
  uint64_t refused_terms = 0;
  uint64_t taken_over = 0;  // sessions, by a coordinator that knew nothing
  std::vector<std::string> errors;
};

class ElectionNode {
 public:
  ElectionNode(ElectionStage* stage, ElectionLedger* ledger,
               std::vector<std::unique_ptr<Candidate>>* candidates, int number,
               int nodes, int steps);
  ~ElectionNode();

  bool finished() const { return finished_; }
  std::string Text() const;
  // The stream to this coordinator breaks, if there is one, and it cannot be
  // reached for so long.
  void CutFrom(size_t candidate, int64_t time);

 private:
  class Stream;
  void Event(const std::function<void()>& event);
  void Act();
  void Tick();
  void Enter();
  void StartStep();
  void Submit(const std::string& name);
  void OnRun(const worker::RunSpec& run);
  void LeaveEpoch(const std::string& why);
  // The transport.
  void Open();
  void SendOn(proto::ExecutorMessage message);
  void Again(bool welcomed);
  void OnStreamMessage(const proto::CoordinatorMessage& message);
  void OnWelcome(const proto::CoordinatorMessage& message);
  void OnStreamEnded(const absl::Status& status);
  void OnAcknowledged();
  void Lose(const absl::Status& status);
  Candidate* called() { return (*candidates_)[index_].get(); }

  ElectionStage* const stage_;
  ElectionLedger* const ledger_;
  std::vector<std::unique_ptr<Candidate>>* const candidates_;
  const int number_;
  const int nodes_;
  const int steps_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  worker::ExecutorCore core_;
  worker::CoordinatorChoice choice_;
  size_t index_ = 0;  // of the coordinator that is called, as choice_'s
  // Of the link that is open.
  std::optional<worker::CoordinatorSession> session_;
  std::shared_ptr<Stream> stream_;
  bool link_open_ = false;
  bool up_ = false;
  bool ack_planned_ = false;
  uint64_t joined_term_ = 0;
  uint64_t presence_ = 0;  // its number
  int64_t pause_ = 0;
  std::map<size_t, int64_t> cut_until_;  // by candidate
  // The rank.
  worker::ClientId client_ = 0;
  uint64_t epoch_ = 0;
  size_t executed_ = 0;  // in the epoch
  int step_ = 0;
  std::map<std::string, uint32_t> slots_, generations_;
  std::set<std::string> pending_;
  bool finished_ = false;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_ELECTION_NODE_H_
