// RankCore: a rank's operations, without threads, sockets or clock.
//
// Purpose: submits operations: publishes arrivals on the board and lets the
// progress engine run the operations. Names and their slots, process sets, the
// join and the checksums of results have their own classes; RankCore's mutex
// guards them.
//
//   RankCore core(&board, local_rank, &shell);
//   core.Start(operations);            // any thread
//   while (core.Step()) {}             // the driver thread
//   core.OnMessage(bytes);             // the driver thread; from the executor
//
// While this rank's join is pending, every Step() looks for operations that
// other ranks have submitted and submits them for this rank too (RankJoin).
//
// Thread contract: one thread at a time, the driver thread, calls Step() and
// OnMessage(); any thread may call the other functions at any time. No function
// waits.
//
// Invariants: an operation that was started ends exactly once. A name has at
// most one operation on the board. outstanding() counts operations that have
// not ended and held tickets.
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "client/engine/process_set_table.h"
#include "client/engine/progress_engine.h"
#include "client/engine/rank_join.h"
#include "client/engine/rank_names.h"
#include "client/engine/rank_shell.h"
#include "client/engine/result_log.h"
#include "common/board/board.h"
#include "common/process_set.h"
#include "common/wire/session_messages.h"

namespace maypole {

// An error if two operations of one process set and kind have the same name.
Status CheckDoubles(std::span<const std::shared_ptr<Operation>> operations);

class RankCore : private SubmittedOperations {
 public:
  RankCore(const Board* board, uint32_t local_rank, RankShell* shell);

  // From now on the executor gets checksums of this rank's results. Called
  // before the first operation.
  void EnableChecksums() { results_.Enable(); }
  // Sends the checksums that are kept. Called when the rank leaves.
  void SendAllResults() {
    std::lock_guard lock(mutex_);
    results_.SendAll();
  }

  // As Communicator::Start().
  Status Start(std::span<const std::shared_ptr<Operation>> operations);
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const;
  // The input of an operation that was started with input_ready == false has
  // been written: this rank arrives. Does nothing if it has ended already.
  void InputReady(const std::shared_ptr<Operation>& operation);
  // The input will never be written. Ends the epoch with this error, because
  // the other ranks cannot get this rank's part.
  void InputFailed(const Operation& operation, const Status& error);
  // A thread waits for the operation or polls it, so across nodes it must not
  // be held back for fusion.
  void Want(const Operation& operation);

  // Does what can be done now; false if there was nothing to do.
  bool Step();
  // Takes a message from the executor; the caller has checked its header.
  void OnMessage(const std::vector<char>& message);
  // The executor has gone and will answer nothing more. The caller has aborted
  // the board.
  void LoseExecutor();
  // From now on Start() fails.
  void Leave();
  // Ends all operations with this status.
  void FailAll(const Status& status);

  // Publishes this rank's heartbeat and position on the board. The driver
  // thread calls it from time to time.
  void PublishPosition();
  // Publishes on the board that this rank is blocked in a wait for the
  // operation; false if that is not certain (for example, it has no slot yet).
  bool SetBlocked(const Operation& operation);
  void ClearBlocked();

  // What a wait for the operation waits for now. Sets *late to a mask of the
  // local ranks that have not submitted it.
  WaitFor WaitsFor(const Operation& operation, uint64_t* late) const;
  // Counts on the board, for the metrics, that a thread has slept. first: no
  // thread has slept for this operation before.
  void CountSleep(WaitFor what, uint64_t late, uint64_t nanoseconds,
                  bool first) const;

  uint32_t outstanding() const { return outstanding_.load(); }
  // See ProgressEngine::has_enqueued().
  bool has_enqueued() const { return engine_.has_enqueued(); }
  // True if the executor still has to answer a request.
  bool expects_messages() const { return requests_.any(); }
  // True if the executor has recalled slots: a message is waiting.
  bool recalled() const {
    return me_.recalls.load(std::memory_order_relaxed) !=
           recalls_answered_.load(std::memory_order_relaxed);
  }
  bool joining() const { return join_.joining(); }
  // Operations that will be passed to RankShell::Record().
  uint32_t unrecorded() const { return unrecorded_.load(); }

 private:
  // A held ticket.
  struct Held {
    uint32_t slot;
    uint32_t generation;
    uint64_t start;  // where the first search for a free position began
  };

  // SubmittedOperations
  Operation* Claim(uint32_t slot, uint32_t generation) override;
  uint32_t WaitingGeneration(uint32_t slot) override;
  void Finish(Operation* operation, Status status) override;
  std::vector<Operation*> Waiting() override {
    std::lock_guard lock(mutex_);
    return names_.Waiting();
  }
  bool AbortIsOverdue() override { return shell_->AbortIsOverdue(); }
  void Detach(Operation* operation) override { shell_->Detach(operation); }
  int64_t Now() override { return shell_->Now(); }
  void GiveUp(Status status) override { shell_->GiveUp(std::move(status)); }

  // Submitting. These and all functions below are called under the mutex.
  Status CheckGroup(
      std::span<const std::shared_ptr<Operation>> operations) const;
  Status StartOne(const std::shared_ptr<Operation>& operation);
  Status RequestSet(const std::shared_ptr<Operation>& operation);
  void BeginJoin(const std::shared_ptr<Operation>& operation);
  void Enqueue(RankName& name, std::shared_ptr<Operation> operation);
  void CountIn();
  void CountOut();
  // Arrives at the queued operations that can begin.
  void Begin(RankName& name);
  bool ArriveFirst(RankName& name);
  void SetInputReady(Operation& operation);
  bool FailPendingInputs();

  void AllotSlot(const session::SlotReply& reply);
  void OnRecall(const session::SlotRecall& recall);
  bool GiveBack(uint32_t slot);
  void OnSetReply(const session::SetReply& reply);
  bool PlaceHeldTickets();
  bool StepControls();
  bool StandIn();

  void End(Operation& operation, Status status);
  void EndJoin(const std::pair<std::shared_ptr<Operation>, Status>& join);
  void FailQueue(RankName& name, const Status& status);
  void FailControls(const Status& status);
  void UpdateControls() {
    has_controls_.store(join_.pending() || sets_.pending() > 0);
  }
  // For the metrics.
  void CountEnded(const RankName& name, const Operation& operation) const;
  uint64_t RanksNotJoined() const;

  const Board* const board_;
  const uint32_t local_rank_;
  const int rank_;
  RankBlock& me_;
  RankShell* const shell_;
  ProgressEngine engine_;

  mutable std::mutex mutex_;  // guards all members below except atomics
  ExecutorRequests requests_;
  RankNames names_;
  ProcessSetTable sets_;
  RankJoin join_;
  ResultLog results_;
  EagerPool pool_;
  std::deque<Held> held_;
  bool left_ = false;

  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> recalls_answered_{0};
  std::atomic<bool> has_held_{false};
  std::atomic<uint32_t> inputs_pending_{0};  // operations without input_ready
  std::atomic<bool> has_controls_{false};
  std::atomic<uint32_t> unrecorded_{0};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_
