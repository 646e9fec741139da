// ExecutorLogic: what an executor does with what happens to it.
//
// Purpose: which event leads to which call of the core, and which action of the
// core to which call of the board, the network and the clients; in which order
// things are made, closed and let go. Below it lies the seam ExecutorSystem: no
// descriptor, no thread and no clock in here. The program and the simulation
// both drive this class.
//
//   ExecutorLogic logic(core_options, &system, &observer);
//   while (!logic.done()) {
//     const int64_t ms = logic.PrepareSleep();
//     logic.Wake(...what has happened within ms...);
//   }
//
// A turn is Wake() and PrepareSleep(). New clients come last in it: a rank that
// comes again has left before, and its Goodbye may still stand in its old
// socket.
//
// Life: it is done when the supervisor has agreed that it is idle, or is gone,
// and no client is left; or by Stop().
//
// Its parts: executor_logic.cc (turns, the supervisor),
// executor_logic_clients.cc, executor_logic_epoch.cc (coordinator, network,
// board).
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/core/executor_core.h"
#include "worker/executor/board/board_keeper.h"
#include "worker/executor/executor_system.h"

namespace maypole::worker {

class ExecutorLogic {
 public:
  // Both outlive it.
  ExecutorLogic(const ExecutorCoreOptions& options, ExecutorSystem* system,
                ExecutorObserver* observer);
  virtual ~ExecutorLogic();

  // To be called before the loop sleeps: whoever does something from now on
  // wakes it. Returns for how many milliseconds it may sleep.
  int64_t PrepareSleep();
  // Deals with what has happened; nothing, if only time has passed.
  void Wake(std::span<const ExecutorEvent> events);
  // SIGTERM.
  void Stop();
  bool done() const { return done_; }

  // Null: there is no board.
  const Board* board() const {
    return keeper_ == nullptr ? nullptr : &keeper_->board();
  }
  size_t clients() const { return clients_.size(); }
  // Processes that are watched though their connections were closed.
  size_t watched() const { return watched_.size(); }

 protected:
  // What the core asks for before it is done, and what ranks have made ready
  // before the core hears of it; for tests that make it wrong.
  virtual void Intercept(std::vector<Action>*) {}
  virtual void Intercept(std::vector<ReadySlot>*) {}

 private:
  struct Client {
    std::unique_ptr<ClientLink> link;
    int rank = 0;  // what it has said it is
  };

  int64_t NowMs() { return system_->NowNs() / 1000000; }
  void Tick();
  void TakeReadySlots();
  // Looks at the board for what nobody tells, if it is time.
  void LookAround();
  int64_t SleepMs() const;

  void Handle(const ExecutorEvent& event);
  void TakeClients();
  void Admit(ClientId id, const ArrivingClient& client,
             std::unique_ptr<ClientLink> link);
  void ReadAllClients();
  void ReadClient(ClientId id, int max_messages);
  void OnProcessEnded(ClientId id);
  bool OnMessage(ClientId id, const std::vector<char>& data);
  Status Dispatch(ClientId id, const std::vector<char>& data);
  void ClientGone(ClientId id, const std::string& how);

  void DoActions();
  void Do(ReplyClient& a);
  void Do(RefuseClient& a);
  void Do(CloseClient& a);
  void Do(KeepWatching& a);
  void Do(StopWatching& a);
  void Do(OpenLink& a);
  void Do(SendToCoordinator& a);
  void Do(PrepareBackend& a);
  void Do(ConnectBackend& a);
  void Do(CreateBoard& a);
  void Do(AllotSlot& a);
  void Do(FindIdleSlots& a);
  void Do(RecallFrom& a);
  void Do(FreeSlot& a);
  void Do(WantSlot& a);
  void Do(IssueRun& a);
  void Do(FailSlot& a);
  void Do(MarkLeft& a);
  void Do(MarkGone& a);
  void Do(AbortBoard& a);
  void Do(WantChange& a);
  void Do(DropEpoch& a);
  void Do(ReportIdle& a);
  void Welcome(const CreateBoard& a);
  void Send(ClientId id, const void* data, size_t bytes);
  // A function that posts another one, which runs if *number is still the same
  // by then: its transport, or network, is the current one.
  std::function<void(std::function<void()>)> PosterFor(const uint64_t* number);

  const ExecutorCoreOptions options_;
  ExecutorSystem* const system_;
  ExecutorObserver* const observer_;
  ExecutorCore core_;
  uint64_t received_ = 0;  // clients handed over
  bool idle_reported_ = false;
  bool supervised_ = true;
  bool done_ = false;
  int64_t looked_ms_ = 0;
  ClientId next_client_ = 1;
  std::map<ClientId, Client> clients_;
  std::map<ClientId, std::unique_ptr<ProcessWatch>> watched_;

  uint64_t link_number_ = 0;  // of transport_; what others post is dropped
  uint64_t presence_sequence_ = 0;  // unacknowledged Presence, or 0
  std::unique_ptr<BoardWake> wake_;
  std::unique_ptr<BoardKeeper> keeper_;
  bool tickets_held_ = false;    // by keeper_
  uint64_t network_number_ = 0;  // of network_; what others post is dropped
  // Last: they call back, and look at the board.
  std::unique_ptr<EpochNetwork> network_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_
