// BoardCommunicator: a rank's operations on its node's board.
//
// Purpose: the shell around RankCore: it owns the connection to the executor
// and the progress thread, and serves the threads that wait. One thread at a
// time, the driver thread, calls the core's Step().
//
//   core's mutex  names, slots, operations that wait for a ticket; held briefly
//   drive mutex   the progress engine and the socket; held for one step
//   A thread that holds the drive mutex may take the core's mutex, never vice
//   versa.
//
// The driver thread is a thread in Await() (wait_loop.h), or, while operations
// are outstanding and no thread is in Await(), the progress thread. A thread
// whose sleep has timed out reads the executor's socket, so an executor's death
// ends all operations within that time.
//
// Thread contract: as Communicator. The progress thread takes no signals.
#ifndef MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/bootstrap/rank_options.h"
#include "client/engine/rank_core.h"
#include "client/session/communicator.h"
#include "client/session/rank_session.h"
#include "client/session/rank_timeline.h"
#include "client/session/session_outbox.h"
#include "client/session/state_calls.h"
#include "client/session/timeline_outbox.h"
#include "client/session/wait_loop.h"

namespace maypole {

class BoardCommunicator : public Communicator,
                          private RankShell,
                          private WaitLoop::Driver {
 public:
  // Joins the job; blocks until all ranks have joined.
  static Status Join(const RankOptions& options,
                     std::unique_ptr<BoardCommunicator>* out);
  ~BoardCommunicator() override;

  Status Start(std::span<const std::shared_ptr<Operation>> operations) override;
  void InputReady(const std::shared_ptr<Operation>& operation) override {
    core_.InputReady(operation);
  }
  void InputFailed(const std::shared_ptr<Operation>& operation,
                   const Status& error) override;
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const override {
    return core_.FindSet(id);
  }
  void Want(const Operation& operation) override;
  void WatchCallbacks(std::shared_ptr<const Callbacks> callbacks) override {
    waits_.WatchCallbacks(std::move(callbacks));
  }
  void Progress(const Operation& operation) override;
  Status Await(const Operation& operation, int timeout_ms) override {
    return waits_.Await(operation, timeout_ms);
  }
  Status StartTimeline(const std::string& path, bool mark_cycles) override {
    return timeline_.Start(path, mark_cycles);
  }
  Status StopTimeline() override { return timeline_.Stop(); }
  void AnnounceReturn() override { returns_.store(true); }
  void AnnounceFinished(bool finished) override;
  void Leave() override;
  bool homogeneous() const override { return homogeneous_; }
  // The options given to Join(), with this rank's numbers in the epoch.
  const RankOptions& options() const { return options_; }
  uint32_t change_wanted() const override {
    return board_->header().change_wanted.load(std::memory_order_acquire);
  }
  std::shared_ptr<Arena> arena() const override { return arena_; }
  int NoteGpu(std::string_view uuid) override;
  GpuUse UseOfGpus() const override;
  bool executors_have_nccl() const override;
  bool MayRunOnGpus(const ProcessSet& set, Kind kind, DType dtype,
                    std::string_view uuid) const override;
  void Wake() override { WakeThreads(); }
  Status SendGpuMemory(const session::GpuMemoryRequest& request,
                       int fd) override;
  void OnGpuMemoryReply(
      std::function<void(const session::GpuMemoryReply&)> handler) override;
  void OnConnectGpu(
      std::function<void(const session::ConnectGpu&)> handler) override;
  void OnEpochOver(std::function<void()> handler) override;
  void NoteGpuRuns(int more) override;
  Status CallForState(session::StateCall call, std::string_view name, int fd,
                      Fd* found) override;
  void ExpectMessages(int more) override;
  Status EpochStatus() const override { return board_->AbortStatus(); }
  uint64_t eager_bytes() const override { return board_->config().eager_bytes; }

  // For a forked child: closes descriptors and unmaps the board. Afterwards
  // nothing else of this object may be called, not even its destructor.
  void AbandonInChild();

 private:
  BoardCommunicator(const RankOptions& options,
                    std::unique_ptr<RankSession> session,
                    std::shared_ptr<Arena> arena);

  // RankShell
  void Send(const void* message, size_t bytes) override {
    outbox_.Send(message, bytes);
  }
  bool SendIfRoom(const void* message, size_t bytes) override {
    return outbox_.SendIfRoom(message, bytes);
  }
  void WakeExecutor() override { session_->WakeExecutor(); }
  void WakeThreads() override;
  bool MarkUnattended(const Operation& operation) override;
  // All other threads in Await() may be asleep, so they must be woken.
  void Ended() override {
    if (waits_.others_wait()) WakeThreads();
  }
  void ShowUser(const std::string& line) override;
  void Record(const Operation& operation) override;
  bool AbortIsOverdue() override;
  void Detach(Operation* operation) override;
  int64_t Now() override;
  void GiveUp(Status status) override;

  // WaitLoop::Driver
  bool DriveInTurn(Look look) override;
  bool HasWork() const override {
    return core_.outstanding() > 0 || core_.recalled() ||
           core_.has_enqueued() || expected_messages_.load() > 0 ||
           timeline_.waits() ||
           (gpu_runs_.load() > 0 && !epoch_over_told_.load());
  }

  void FindInArena(Operation& operation) const;
  bool Drive(bool look_at_socket);
  void TellEpochOver();
  bool ReadReplies();
  void HandOut(const std::vector<char>& message, std::vector<Fd> descriptors);
  // pending: operations that this rank leaves unfinished. returns: the process
  // continues and may join the job's next epoch. why: the error that makes the
  // rank leave. Does not block: call outbox_.Flush() after the last Goodbye.
  void SayGoodbye(uint32_t pending, bool returns, const Status& why);
  void LoseExecutor(const std::string& how);
  Status BindProgressThread();
  void ProgressLoop();
  void Park();
  int SendTimeline();
  void SendTimelineRest();
  Status InputFailure();

  const RankOptions options_;
  std::unique_ptr<RankSession> session_;
  const Board* board_;
  RankBlock& me_;
  bool homogeneous_ = true;

  const std::shared_ptr<Arena> arena_;  // null: the board has none
  std::chrono::steady_clock::time_point abort_seen_{};  // by the driver thread

  std::timed_mutex drive_mutex_;
  SessionOutbox outbox_;
  RankCore core_;
  WaitLoop waits_;
  // This rank has ended the epoch because an input will never be written; it
  // informs the executor when its operations have ended.
  std::atomic<bool> input_failed_{false};
  std::mutex input_mutex_;
  Status input_failure_;  // why; guarded by input_mutex_
  bool closed_ = false;  // this rank has left; the engine's operations are gone
  uint32_t drives_ = 0;

  std::atomic<bool> returns_{false};
  std::mutex left_mutex_;
  bool left_ = false;

  RankTimeline timeline_;
  TimelineOutbox timeline_outbox_;

  // Replies and other messages for the handlers that have not arrived yet.
  std::atomic<int> expected_messages_{0};
  StateCalls state_calls_;
  std::atomic<int> gpu_runs_{0};
  std::atomic<bool> epoch_over_told_{false};
  std::mutex gpu_memory_mutex_;  // held while a handler runs
  std::function<void(const session::GpuMemoryReply&)> on_gpu_memory_;
  std::function<void(const session::ConnectGpu&)> on_connect_gpu_;
  std::function<void()> on_epoch_over_;

  std::atomic<bool> stop_{false};
  std::thread progress_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_
