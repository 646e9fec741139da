// WaitLoop: the threads of a rank that wait for operations.
//
// Purpose: a waiting thread drives the rank's operations itself. If it finds
// nothing to do, it spins for its budget, yielding its core if a rank that it
// waits for is on the same one (wait_policy.h); then it sleeps on the rank's
// futex word for a limited time.
//
// The sleeping flag on the board says that the rank needs a futex wake-up to
// move data. The flag is off while a waiter spins, although the progress thread
// sleeps: waking the progress thread would only take a core from the waiter.
// For the same reason the flag that a sleeping waiter sets, kWaitersSleep,
// leaves the progress thread asleep. The last waiter to leave sets the flag
// again, for all threads, and then checks the board once more.
//
// A waiter also finds out whether this rank is certainly blocked, so that a
// deadlock of all ranks can be proved (docs/protocol.md), and warns the user
// of long waits.
//
// Thread contract: any thread.
#ifndef MAYPOLE_CLIENT_SESSION_WAIT_LOOP_H_
#define MAYPOLE_CLIENT_SESSION_WAIT_LOOP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/bootstrap/rank_options.h"
#include "client/engine/operation.h"
#include "client/engine/rank_core.h"
#include "client/session/backoff.h"
#include "client/session/communicator.h"
#include "client/session/core_hints.h"
#include "client/session/wait_policy.h"
#include "common/board/board.h"
#include "common/board/futex.h"
#include "common/status.h"

namespace maypole {

// What the driver thread does besides a step of the core: nothing, publish this
// rank's position on the board, or read the executor's socket.
enum class Look { kAtBoard, kPublish, kAtSocket };

class WaitLoop {
 public:
  // What WaitLoop needs from its communicator.
  class Driver {
   public:
    virtual ~Driver() = default;
    // Takes a step; returns true if anything moved, or if another thread is
    // driving for a while.
    virtual bool DriveInTurn(Look look) = 0;
    // True if a thread of this rank has something to do.
    virtual bool HasWork() const = 0;
    virtual void WakeThreads() = 0;
  };

  // All must outlive this object.
  WaitLoop(const RankOptions* options, const Board* board, RankCore* core,
           Driver* driver);

  // As Communicator::Await() and WatchCallbacks().
  Status Await(const Operation& operation, int timeout_ms);
  void WatchCallbacks(std::shared_ptr<const Callbacks> callbacks) {
    callbacks_ = std::move(callbacks);
  }
  // This thread submits an operation or asks for one.
  void NoteUser();

  // How many threads wait.
  uint32_t waiters() const { return waiters_.load(); }
  // True if threads other than this one wait.
  bool others_wait() const;

 private:
  // True if there was something to do, or another thread or process has woken
  // this one.
  bool SleepOnBoard(const Operation& operation, int timeout_ms,
                    Backoff* backoff);
  FutexResult SleepCounted(const Operation& operation, uint32_t seen,
                           int timeout_ms, Backoff* backoff);
  void StopAttending();
  Pause NextPause(const Operation& operation, std::chrono::nanoseconds idle);
  bool IsCertainlyBlocked(const Operation& operation);

  const RankOptions& options_;
  const Board* const board_;
  RankBlock& me_;
  RankCore* const core_;
  Driver* const driver_;
  WaitPolicy policy_;
  CoreHints core_hints_;

  std::atomic<uint32_t> waiters_{0};
  // How many threads have used the communicator and have not ended, not
  // counting that of callbacks_. A thread may outlive this object.
  const std::shared_ptr<std::atomic<uint32_t>> users_ =
      std::make_shared<std::atomic<uint32_t>>(0);
  // Null: there are none.
  std::shared_ptr<const Callbacks> callbacks_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_WAIT_LOOP_H_
