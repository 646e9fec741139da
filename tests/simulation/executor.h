// Executor: the real core of an executor, in a simulated shell.
//
// Purpose: what worker/session/executor.h does around worker::Core, with the
// same BoardKeeper and NetworkRunner on a real board: one loop that takes what
// is there (clients' messages and ends, letters of the transport and the
// network, time), lets the core answer, and does what it answers.
//
// Its threads are turns of the simulation: the loop's, and the network
// thread's. Each has its turn when somebody wakes it, by the same flags on the
// board as in reality; so a wake-up that is forgotten is found.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_EXECUTOR_H_
#define MAYPOLE_TESTS_SIMULATION_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/session.h"
#include "tests/simulation/backend.h"
#include "tests/simulation/connection.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/stage.h"
#include "tests/simulation/transport.h"
#include "worker/core/core.h"
#include "worker/session/board_keeper.h"
#include "worker/session/network_runner.h"

namespace maypole::simulation {

class Executor : public std::enable_shared_from_this<Executor> {
 public:
  struct Options {
    int node = 0;
    worker::CoreOptions core;
    Stage* stage = nullptr;
    Coordinator* coordinator = nullptr;
    Fabric* fabric = nullptr;
  };

  explicit Executor(Options options);
  ~Executor();

  void Start();
  // A client that the supervisor hands over.
  void TakeClient(std::shared_ptr<Connection> connection,
                  const session::Hello& hello);
  // SIGKILL.
  void Kill();
  // It has told the supervisor that it is idle, and may end.
  bool idle() const { return idle_; }
  // Ends by itself.
  void End();

  // The job's epoch in words that are unique in a run.
  const std::string& EpochKey() const { return epoch_key_; }
  const Board* board() const {
    return keeper_ == nullptr ? nullptr : &keeper_->board();
  }
  size_t clients() const { return core_.clients(); }

  // After somebody has done something on this node: wakes the network thread
  // if its word on the board has changed.
  void LookAtWakeWords();
  // A client writes the board's eventfd.
  void WakeByBoard();

  // --- Faults ---------------------------------------------------------------

  // False: it has no connected backend.
  bool FailBackend();

 private:
  using ClientId = worker::ClientId;

  // The network thread and its backend, of one epoch.
  struct Network {
    std::unique_ptr<SimulatedBackend> backend;
    std::unique_ptr<worker::NetworkRunner> runner;
    std::unique_ptr<Turn> turn;
    bool asleep = false;
    bool over = false;
    uint32_t seen = 0;  // of the wake word, when it fell asleep
    std::shared_ptr<int> life = std::make_shared<int>();
  };

  void WakeLoop();
  void LoopTurn();
  int64_t SleepTime();
  void LookAround();
  void RunLetters();
  void ReadClient(ClientId id, int max_messages);
  Status OnClientMessage(ClientId id, const std::vector<char>& data);
  void ClientGone(ClientId id, const std::string& how);
  void HandOvers();
  void Post(std::function<void()> letter);
  void NetworkTurn();
  void DropNetwork();

  void Spoil(std::vector<worker::Action>* actions);
  void DoActions();
  void Do(worker::ReplyClient& a);
  void Do(worker::RefuseClient& a);
  void Do(worker::CloseClient& a);
  void Do(worker::KeepWatching& a);
  void Do(worker::StopWatching&) {}
  void Do(worker::OpenLink& a);
  void Do(worker::SendToCoordinator& a);
  void Do(worker::PrepareBackend& a);
  void Do(worker::ConnectBackend& a);
  void Do(worker::CreateBoard& a);
  void Do(worker::AllotSlot& a);
  void Do(worker::WantSlot& a);
  void Do(worker::IssueRun& a);
  void Do(worker::FailSlot& a);
  void Do(worker::MarkLeft& a);
  void Do(worker::MarkGone& a);
  void Do(worker::AbortBoard& a);
  void Do(worker::WantChange& a);
  void Do(worker::DropEpoch& a);
  void Do(worker::ReportIdle& a);
  void SendToClient(ClientId id, const void* data, size_t bytes, Fd board);

  const Options options_;
  Stage* const stage_;
  worker::Core core_;
  std::shared_ptr<int> life_ = std::make_shared<int>();
  Turn loop_;
  bool idle_ = false;
  bool woken_ = false;  // somebody has asked for the turn, not time alone
  std::vector<std::function<void()>> letters_;
  struct HandOver {
    std::shared_ptr<Connection> connection;
    session::Hello hello;
  };
  std::vector<HandOver> hand_overs_;
  ClientId next_client_ = 1;
  std::map<ClientId, std::shared_ptr<Connection>> clients_;
  std::shared_ptr<SimulatedTransport> transport_;
  uint64_t link_number_ = 0;
  uint64_t presence_sequence_ = 0;
  int64_t looked_ms_ = 0;
  std::string epoch_key_;
  std::unique_ptr<worker::BoardKeeper> keeper_;
  std::unique_ptr<Network> network_;
  uint64_t network_number_ = 0;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_EXECUTOR_H_
