// Executor: the real logic of an executor over a simulated system.
//
// Purpose: runs worker::ExecutorLogic, with the real BoardKeeper and
// NetworkRunner on a real board, on events that the seed orders. The loop gets
// a turn when a source becomes ready, or when the timeout given by the logic
// has passed; ready sources are reported in any order.
//
// It checks that the logic handles every reported source and releases what it
// has made, and that ranks wake it when they make operations ready.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_EXECUTOR_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/session_messages.h"
#include "tests/simulation/parts/backend.h"
#include "tests/simulation/parts/connection.h"
#include "tests/simulation/parts/coordinator.h"
#include "tests/simulation/parts/executor_links.h"
#include "tests/simulation/parts/gpu.h"
#include "tests/simulation/parts/network.h"
#include "tests/simulation/stage.h"
#include "worker/executor/executor_logic.h"

namespace maypole::simulation {

class Executor : private worker::ExecutorSystem,
                 private worker::ExecutorObserver {
 public:
  struct Options {
    int node = 0;
    worker::ExecutorCoreOptions core;
    Stage* stage = nullptr;
    Coordinator* coordinator = nullptr;
    Fabric* fabric = nullptr;
  };

  explicit Executor(Options options);
  ~Executor() override;

  void Start();
  // The supervisor passes a client on.
  void TakeClient(std::shared_ptr<Connection> connection,
                  const session::Hello& hello);
  // SIGKILL.
  void Kill();
  // The agent has died; this executor serves its clients to the end.
  void LoseSupervisor();
  // SIGTERM.
  void Stop();
  // The supervisor has agreed that it is idle, and passes no more clients on.
  bool ending() const { return supervisor_agrees_; }
  // Its process ends.
  bool done() const { return logic_ == nullptr || logic_->done(); }
  void End();

  // A key of the job's epoch, unique in a run.
  const std::string& EpochKey() const { return epoch_key_; }
  const Board* board() const {
    return logic_ == nullptr ? nullptr : logic_->board();
  }
  size_t clients() const { return logic_ == nullptr ? 0 : logic_->clients(); }
  bool watches_board() const { return boards_watched_ > 0; }

  // Call after every event on this node: wakes the network thread if its word
  // on the board has changed.
  void LookAtWakeWords();

  // Fault: the backend fails. Returns false if none is connected.
  bool FailBackend();

 private:
  // The real logic, except for the sabotage, if any.
  class Logic : public worker::ExecutorLogic {
   public:
    explicit Logic(Executor* executor)
        : ExecutorLogic(executor->options_.core, executor, executor),
          executor_(executor) {}

   private:
    void Intercept(std::vector<worker::Action>* actions) override {
      executor_->Spoil(actions);
    }
    void Intercept(std::vector<worker::ReadySlot>* ready) override {
      executor_->Judge(ready);
    }
    Executor* const executor_;
  };
  struct Arriving {
    std::shared_ptr<Connection> connection;
    session::Hello hello;
  };

  void WakeLoop();
  bool HasControl() const {
    return !arriving_.empty() || supervisor_agrees_ || supervisor_gone_;
  }
  void LoopTurn();
  std::vector<worker::ExecutorEvent> Ready() const;
  // told: numbers of the reported sources, and how often each had been handled.
  void CheckAttended(const std::vector<std::pair<uint64_t, uint64_t>>& told);
  void Spoil(std::vector<worker::Action>* actions);
  void Judge(std::vector<worker::ReadySlot>* ready);

  // ExecutorSystem
  int64_t NowNs() override { return stage_->scheduler.now(); }
  void Post(std::function<void()> function) override;
  std::vector<std::function<void()>> TakePosted() override;
  HandOver TakeClient(worker::ClientId id, worker::ArrivingClient* client,
                      std::unique_ptr<worker::ClientLink>* link) override;
  void ReportIdle(uint64_t received) override;
  std::unique_ptr<worker::Transport> OpenTransport(
      worker::TransportCallbacks callbacks) override;
  std::unique_ptr<worker::EpochNetwork> MakeNetwork(
      const worker::PrepareBackend& epoch,
      worker::EpochNetwork::Callbacks callbacks) override;
  Status CreateBoard(const BoardConfig& config, uint32_t version,
                     std::unique_ptr<Board>* board) override;
  std::unique_ptr<EpochGpus> MakeGpus(EpochGpus::Callbacks callbacks) override;
  std::unique_ptr<worker::BoardWake> MakeBoardWake() override;
  std::unique_ptr<worker::TimelineFile> MakeTimelineFile(
      int pid, const std::string& name,
      std::function<void(Status)> failed) override;
  void EndProcess(const std::string& reason) override {
    stage_->Found("an executor ends: ", reason);
  }

  // ExecutorObserver
  void OnClientGone(int rank, const std::string& how) override;
  void OnCoordinatorLost(const absl::Status& status) override;
  void OnNetworkFailed(const absl::Status& status) override;
  void OnEpochStarted(const BoardConfig& config, const Board& board) override;
  void OnEpochAborted(const worker::AbortBoard& abort) override;
  void OnEpochOver(const worker::EpochNetwork* network) override;
  void OnRankLeft(const worker::MarkLeft& left) override;
  void OnIssued(const worker::RunSpec& run) override;
  void OnOperationFailed(const worker::FailSlot& fail,
                         const std::string& name) override;

  const Options options_;
  Stage* const stage_;
  std::shared_ptr<int> life_ = std::make_shared<int>();
  Turn loop_;
  bool woken_ = false;        // in this turn, by a rank
  bool had_board_ = false;    // when this turn began
  uint64_t board_epoch_ = 0;  // of the board that was made last
  std::vector<std::function<void()>> posted_;
  std::deque<Arriving> arriving_;
  uint64_t handed_over_ = 0;
  bool supervisor_agrees_ = false;
  bool supervisor_gone_ = false;  // and the logic has not heard of it yet
  bool control_read_ = false;     // in this turn
  uint64_t last_source_ = 0;
  std::map<uint64_t, Source*> sources_;  // in the order of their creation
  int boards_watched_ = 0;
  std::weak_ptr<SimulatedTransport> transport_;
  SimulatedNetwork* network_ = nullptr;
  std::string epoch_key_;                       // of the latest epoch
  std::map<uint64_t, std::string> epoch_keys_;  // by its number
  std::unique_ptr<Logic> logic_;                // null: the process has ended
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_EXECUTOR_H_
