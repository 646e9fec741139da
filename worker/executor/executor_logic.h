// ExecutorLogic: connects the executor's core to events and to the system.
//
// Purpose: translates events to calls of the core, and the core's actions to
// calls of the board, the network and the clients; it also fixes the order in
// which these are created and destroyed. It reaches descriptors, threads and
// the clock only through ExecutorSystem, so that the program and the simulation
// run the same logic.
//
//   ExecutorLogic logic(core_options, &system, &observer);
//   while (!logic.done()) {
//     const int64_t ms = logic.PrepareSleep();
//     logic.Wake(events);   // those that have happened within ms
//   }
//
// A turn is Wake() and PrepareSleep(). New clients are admitted last in a turn:
// if a rank reconnects, its Goodbye may still be unread in its old socket.
//
// done() becomes true after Stop(), and when no client is left and the
// supervisor has agreed to end the executor or is gone; but not while the epoch
// drains, that is, while other nodes still receive the results of operations
// that this node's ranks have left behind (after Stop() for kStopDrainMs).
//
// Its parts: executor_logic.cc (turns, the supervisor),
// executor_logic_clients.cc, executor_logic_epoch.cc (coordinator, network,
// board), executor_logic_gpus.cc, executor_logic_state.cc (states that outlive
// ranks), executor_logic_timeline.cc.
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
#include "worker/core/timeline/executor_timeline.h"
#include "worker/executor/board/board_keeper.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/state_store.h"

namespace maypole::worker {

class ExecutorLogic : private ExecutorTimeline::Shell {
 public:
  // Both outlive it.
  ExecutorLogic(const ExecutorCoreOptions& options, ExecutorSystem* system,
                ExecutorObserver* observer);
  ~ExecutorLogic() override;

  // Call it before the loop sleeps; ranks that act after it wake the loop.
  // Returns for how many milliseconds the loop may sleep.
  int64_t PrepareSleep();
  // Handles the events; none if only time has passed.
  void Wake(std::span<const ExecutorEvent> events);
  // Ends the executor, upon SIGTERM.
  void Stop();
  bool done() const { return done_; }

  // Returns null if there is no board.
  const Board* board() const {
    return keeper_ == nullptr ? nullptr : &keeper_->board();
  }
  size_t clients() const { return clients_.size(); }
  // Number of processes that are watched although their connections are closed.
  size_t watched() const { return watched_.size(); }

 protected:
  // Called with actions before they are executed, and with ready slots before
  // the core gets them, so that tests can falsify them.
  virtual void Intercept(std::vector<Action>*) {}
  virtual void Intercept(std::vector<ReadySlot>*) {}

 private:
  struct Client {
    std::unique_ptr<ClientLink> link;
    int rank = 0;  // as in its Hello
    // Of the messages to it: until Welcome the oldest that it reads.
    uint32_t version = 0;
    int pid = 0;  // in our PID namespace, or 0
  };

  int64_t NowMs() { return system_->NowNs() / 1000000; }
  void Tick();
  void TakeReadySlots();
  // Scans the board for stragglers, frozen and blocked ranks, if a scan is due.
  void LookAround();
  int64_t SleepMs() const;
  int64_t PauseMs() const;  // but for the frozen tier

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
  void OnStateRequest(ClientId id, const session::StateRequest& request);

  // ExecutorTimeline::Shell
  void ToCoordinator(proto::ExecutorMessage message) override;
  void Reply(ClientId client, const session::TimelineReply& reply) override;
  void SetTimeline(uint32_t word) override;
  void WriteFile(std::string text) override;
  void CloseFile() override;
  void MakeFile(ClientId client, const std::string& name) override;
  // For the file of the timeline that is on: it is complete, or has failed. May
  // be called by any thread.
  std::function<void(Status)> FileEnded();
  void OnTimelineFile(ClientId id, const session::TimelineFile& message);
  void StartTimeline(const CreateBoard& a);
  void RecordIssued(const RunSpec& run);

  void DoActions();
  void Do(ReplyClient& a);
  void Do(RefuseClient& a);
  void Do(CloseClient& a);
  void Do(KeepWatching& a);
  void Do(StopWatching& a);
  void Do(OpenLink& a);
  void Do(CloseLink& a);
  void Do(SendToCoordinator& a);
  void Do(SendToPeers& a);
  void Do(TakeRelayed& a);
  void Do(FinishSmall& a);
  void Do(WantCopies& a);
  void Do(SendStats& a);
  void TakePeerMessages();
  void Do(PrepareBackend& a);
  void Do(ConnectBackend& a);
  void Do(CreateBoard& a);
  void Do(AllotSlot& a);
  void Do(FindIdleSlots& a);
  void Do(RecallFrom& a);
  void Do(FreeSlot& a);
  void Do(WantSlot& a);
  void Do(IssueRun& a);
  void Do(OpenGpuMemory& a);
  void Do(CloseGpuMemories& a);
  void Do(MakeCommunicatorId& a);
  void Do(ConnectGpus& a);
  void Do(RunOnGpus& a);
  void Do(RunOnHost& a);
  void Do(CommitSlot& a);
  void Do(FailSlot& a);
  void Do(MarkLeft& a);
  void Do(MarkGone& a);
  void Do(AbortBoard& a);
  void Do(WantChange& a);
  void Do(DropEpoch& a);
  void Do(ReportIdle& a);
  void MakeGpus();
  void MarkOnGpus(uint32_t slot, uint32_t generation);
  void EndGpuRun();
  void DropGpus();
  void Welcome(const CreateBoard& a);
  // Sets the message's version.
  void Send(ClientId id, void* message, size_t bytes);
  // Returns a function that posts functions to the loop. They run only if
  // *number is still the same then, that is, if the transport or network that
  // has posted them is still the current one.
  std::function<void(std::function<void()>)> PosterFor(const uint64_t* number);

  const ExecutorCoreOptions options_;
  ExecutorSystem* const system_;
  ExecutorObserver* const observer_;
  ExecutorCore core_;
  uint64_t received_ = 0;  // clients handed over
  bool idle_reported_ = false;
  bool supervised_ = true;
  bool done_ = false;
  int64_t done_at_ms_ = INT64_MAX;  // although the epoch drains
  int64_t looked_ms_ = 0;
  ClientId next_client_ = 1;
  std::map<ClientId, Client> clients_;
  std::map<ClientId, std::unique_ptr<ProcessWatch>> watched_;

  uint64_t link_number_ = 0;        // identifies transport_, see PosterFor()
  uint64_t presence_sequence_ = 0;  // unacknowledged Presence, or 0
  std::unique_ptr<BoardWake> wake_;
  std::unique_ptr<BoardKeeper> keeper_;
  bool tickets_held_ = false;  // by keeper_
  Fd descriptor_;              // that came with the client's message, or none
  StateStore states_;
  ExecutorTimeline timeline_;
  uint64_t timeline_number_ = 0;  // identifies the file, see PosterFor()
  uint64_t gpus_number_ = 0;      // identifies gpus_, see PosterFor()
  uint64_t network_number_ = 0;   // identifies network_, see PosterFor()
  std::unique_ptr<TimelineFile> timeline_file_;
  // Declared last, because their threads call back and read the board.
  std::unique_ptr<EpochGpus> gpus_;
  std::unique_ptr<EpochNetwork> network_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_LOGIC_H_
