// RankShell: what RankCore needs from outside. The client library
// (client/session/board_communicator.h) or a simulation implements it.
//
// Thread contract: RankCore may hold its lock when it calls a function, so none
// of them may call a function of the core that takes the lock. Only the driver
// thread calls the last three; any thread calls the others.
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_SHELL_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_SHELL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "client/engine/operation.h"
#include "common/status.h"

namespace maypole {

class RankShell {
 public:
  virtual ~RankShell() = default;
  // Sends a session message to the executor. Messages keep their order, and
  // none is lost while this process and the executor live.
  virtual void Send(const void* message, size_t bytes) = 0;
  // As Send(), unless messages wait because the executor does not read: then
  // returns false.
  virtual bool SendIfRoom(const void* message, size_t bytes) = 0;
  virtual void WakeExecutor() = 0;
  // Wakes the rank's own threads, which have something to do.
  virtual void WakeThreads() = 0;
  // Called before an arrival. If no thread of this rank waits for operations,
  // sets the sleeping flag, so that other ranks wake this rank, and returns
  // true.
  virtual bool MarkUnattended(const Operation& operation) = 0;
  // An operation has ended: wakes the threads that wait.
  virtual void Ended() = 0;
  virtual void ShowUser(const std::string& line) = 0;

  // An operation that was submitted while the job's timeline was on has ended
  // (Operation::moments).
  virtual void Record(const Operation& operation) {
    static_cast<void>(operation);
  }
  // A steady clock, in nanoseconds.
  virtual int64_t Now() = 0;

  // See SubmittedOperations (progress_engine.h).
  virtual bool AbortIsOverdue() = 0;
  virtual void Detach(Operation* operation) = 0;
  virtual void GiveUp(Status status) = 0;
};

// Requests to the executor, and how many of them it still has to answer.
//
// Thread contract: any().
class ExecutorRequests {
 public:
  explicit ExecutorRequests(RankShell* shell) : shell_(shell) {}

  template <typename Message>
  void Send(const Message& message) {
    unanswered_.fetch_add(1);
    shell_->Send(&message, sizeof(message));
  }
  void OnAnswered() { unanswered_.fetch_sub(1); }
  // The executor has gone.
  void Forget() { unanswered_.store(0); }
  bool any() const { return unanswered_.load() > 0; }

 private:
  RankShell* const shell_;
  std::atomic<uint32_t> unanswered_{0};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_SHELL_H_
