// BoardCommunicator: a rank's operations on its node's board.
//
// Purpose: the shell around RankCore: the connection to the executor, the
// progress thread, and threads that wait. It sees to it that the core is
// driven: in a thread that waits (Await), else in the progress thread.
//
//   core's mutex  names, slots, who waits for a ticket; held shortly
//   drive mutex   the progress engine and the socket; held for one step
//   A thread that holds the drive mutex may take the core's, not the other way
//   round.
//
// Who drives: Await() drives while it waits; the progress thread while
// operations are outstanding and nobody awaits. Whoever finds nothing to do
// spins for its budget (the progress thread does not), then sleeps on the
// rank's futex word with a bound, after which it looks at the executor's
// socket: an executor's death ends everything within that bound.
//
// The sleeping flag on the board says that the rank needs a futex wake-up to
// move. It is off while somebody awaits and spins, though the progress thread
// sleeps meanwhile: waking that would only take a core from the waiter. Who
// stops attending puts it on again and then looks once more.
//
// Thread contract: as Communicator. The progress thread takes no signals.
#ifndef MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/bootstrap/rank_options.h"
#include "client/engine/rank_core.h"
#include "client/session/backoff.h"
#include "client/session/communicator.h"
#include "client/session/rank_session.h"
#include "common/board/futex.h"

namespace maypole {

class BoardCommunicator : public Communicator, private RankShell {
 public:
  // Joins the job; blocks until all ranks are there.
  static Status Join(const RankOptions& options,
                     std::unique_ptr<BoardCommunicator>* out);
  ~BoardCommunicator() override;

  Status Start(std::span<const std::shared_ptr<Operation>> operations) override;
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const override {
    return core_.FindSet(id);
  }
  void Progress(const Operation& operation) override;
  Status Await(const Operation& operation, int timeout_ms) override;
  void Leave() override;
  bool homogeneous() const override { return homogeneous_; }
  // With this rank's places, if they were not known before.
  const RankOptions& options() const { return options_; }
  uint32_t change_wanted() const override {
    return board_->header().change_wanted.load(std::memory_order_acquire);
  }
  std::shared_ptr<Arena> arena() const override { return arena_; }

  // In a forked child: closes descriptors, unmaps the board. Nothing else of
  // this object may be used afterwards, its destructor included.
  void AbandonInChild();

 private:
  BoardCommunicator(const RankOptions& options,
                    std::unique_ptr<RankSession> session,
                    std::shared_ptr<Arena> arena);
  Status StartThread();

  // RankShell
  void Send(const void* message, size_t bytes) override;
  void WakeExecutor() override { session_->WakeExecutor(); }
  void WakeThreads() override;
  bool LeaveAlone(const Operation& operation) override;
  void Ended() override;
  void Tell(const std::string& line) override;
  bool PatienceIsOver() override;
  void Detach(Operation* operation) override;
  int64_t Now() override;
  void Break(Status status) override;

  // What a driver does besides a step of the progress engine.
  enum class Look { kAtBoard, kTell, kAtSocket };

  void FindInArena(Operation& operation) const;
  bool Drive(bool look_at_socket);
  // There is something to do for who drives.
  bool HasWork() const { return core_.outstanding() > 0 || core_.recalled(); }
  // Drives when the lock is free. True also if another thread has had it for a
  // while: then that one attends.
  bool DriveInTurn(Look look);
  bool ReadReplies();
  void ResendMessages();
  void LoseExecutor(const std::string& how);
  // True if there was something to do, or somebody has woken us.
  bool SleepOnBoard(const Operation& operation, int timeout_ms,
                    Backoff* sleeps);
  FutexResult SleepCounted(const Operation& operation, uint32_t seen,
                           int timeout_ms, Backoff* sleeps);
  void StopAttending();
  void NoteUser();
  bool IsCertainlyBlocked(const Operation& operation);
  void ProgressLoop();
  void Park();

  const RankOptions options_;
  std::unique_ptr<RankSession> session_;
  const Board* board_;
  RankBlock& me_;
  bool homogeneous_ = true;
  bool yields_ = false;
  std::chrono::microseconds spin_;

  const std::shared_ptr<Arena> arena_;  // null: the board has none
  std::chrono::steady_clock::time_point abort_seen_{};  // by who drives

  std::timed_mutex drive_mutex_;
  RankCore core_;
  bool closed_ = false;  // has left: the progress engine's operations are gone
  uint32_t drives_ = 0;

  std::mutex left_mutex_;
  bool left_ = false;

  std::mutex send_mutex_;
  std::deque<std::vector<char>> unsent_;  // messages, oldest first

  std::atomic<uint32_t> waiters_{0};
  // The thread that uses this object, and whether there are several.
  std::atomic<const void*> user_{nullptr};
  std::atomic<bool> several_users_{false};

  std::atomic<bool> stop_{false};
  std::thread progress_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_BOARD_COMMUNICATOR_H_
