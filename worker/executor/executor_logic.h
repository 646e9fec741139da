// ExecutorLogic: connects the executor's core to events and to the system.
//
// Purpose: translates events to calls of the core, and the core's actions to
// calls of the board, the network and the clients. It also fixes the order in
// which these are created and destroyed. It reaches descriptors, threads and
// the clock only through ExecutorSystem, so that the program and the simulation
// run the same logic.
//
//   ExecutorLogic logic(core_options, &system, &observer);
//   while (!logic.done()) {
//     const int64_t ms = logic.PrepareSleep();
//     logic.Wake(events);   // the events within `ms`
//   }
//
// A turn is Wake() and PrepareSleep(). New clients are admitted last in a turn:
// if a rank reconnects, its Goodbye may still be unread in its old socket.
//
// done() becomes true after Stop(), or when no client is left and the
// supervisor has agreed to end the executor or is gone. It stays false while
// the epoch drains, that is, while other nodes still receive the results of
// operations that this node's ranks have left behind (after Stop() for at most
// kStopDrainMs), and until the coordinator knows how the epoch has ended here.
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/core/executor_core.h"
#include "worker/executor/coordinator_channel.h"
#include "worker/executor/epoch_resources.h"
#include "worker/executor/executor_clients.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/state_store.h"
#include "worker/executor/timeline_shell.h"

namespace maypole::worker {

class ExecutorLogic : private ExecutorClients::Handler {
 public:
  // `system` and `observer` must outlive this object.
  ExecutorLogic(const ExecutorCoreOptions& options, ExecutorSystem* system,
                ExecutorObserver* observer);
  ~ExecutorLogic() override;

  // Call it before the loop sleeps; ranks that act afterwards wake the loop.
  // Returns for how many milliseconds the loop may sleep.
  int64_t PrepareSleep();
  // Handles the events; `events` is empty if only time has passed.
  void Wake(std::span<const ExecutorEvent> events);
  // Ends the executor, upon SIGTERM.
  void Stop();
  bool done() const { return done_; }

  // Returns null if there is no board.
  const Board* board() const {
    return epoch_.keeper() == nullptr ? nullptr : &epoch_.keeper()->board();
  }
  size_t clients() const { return clients_.size(); }
  // Number of processes that are watched although their connections are closed.
  size_t watched() const { return clients_.watched(); }

 protected:
  // Called with actions before they are executed, and with ready slots before
  // the core gets them, so that tests can falsify them.
  virtual void Intercept(std::vector<Action>*) {}
  virtual void Intercept(std::vector<ReadySlot>*) {}

 private:
  int64_t NowMs() { return system_->NowNs() / 1000000; }
  void Tick();
  void TakeReadySlots();
  // Scans the board for stragglers, frozen and blocked ranks, if a scan is due.
  void LookAround();
  int64_t SleepMs() const;
  int64_t PauseMs() const;  // SleepMs() without the frozen tier
  void Handle(const ExecutorEvent& event);
  void TakeClients();

  // ExecutorClients::Handler
  Status OnMessage(ClientId id, const std::vector<char>& data) override;
  void AfterMessage() override { DoActions(); }
  void OnClientGone(ClientId id, const std::string& how) override;
  void OnProcessEnded(ClientId id) override { core_.OnProcessEnded(id); }
  void OnStateRequest(ClientId id, const session::StateRequest& request);

  void DoActions();
  // Actions that concern several parts, or none.
  void Do(ReplyClient& a);
  void Do(RefuseClient& a) { clients_.Refuse(a); }
  void Do(CloseClient& a);
  void Do(KeepWatching& a);
  void Do(StopWatching& a) { clients_.StopWatching(a.client); }
  void Do(RecallFrom& a);
  void Do(CreateBoard& a);
  void Do(OpenGpuMemory& a) { epoch_.Open(a, clients_.TakeDescriptor()); }
  void Do(SendStats& a);
  void Do(DropEpoch& a);
  void Do(ReportIdle& a);
  // Sets the message's version, and wakes the rank if it sleeps on the board.
  template <typename Message>
  void Send(ClientId id, Message* message);

  const ExecutorCoreOptions options_;
  ExecutorSystem* const system_;
  ExecutorObserver* const observer_;
  ExecutorCore core_;
  uint64_t received_ = 0;  // clients handed over
  bool idle_reported_ = false;
  bool supervised_ = true;
  bool done_ = false;
  int64_t done_at_ms_ = INT64_MAX;  // even if the epoch drains
  int64_t looked_ms_ = 0;
  bool tickets_held_ = false;  // by the board's keeper
  ClientId next_client_ = 1;
  StateStore states_;
  // The order matters: threads of the later ones call the earlier ones.
  ExecutorClients clients_;
  TimelineShell timeline_;
  EpochResources epoch_;
  CoordinatorChannel coordinator_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_
