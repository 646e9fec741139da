// RankCore: a rank's operations, without threads, sockets or clock.
//
// Purpose: keeps names and slots (until the executor asks for a slot back and
// no operation uses it), process sets and joins. Publishes arrivals on the
// board and lets the progress engine run the operations. For everything outside
// it calls a RankShell: the client library (board_communicator.h) or a
// simulation.
//
//   RankCore core(&board, local_rank, &shell);
//   core.Start(operations);            // any thread
//   while (core.Step()) {}             // the driver thread
//   core.OnMessage(bytes);             // the driver thread; from the executor
//
// While this rank's join is pending, every Step() looks for operations that
// other ranks have submitted and submits them for this rank too, with neutral
// inputs ("stands in"; rank_core_join.cc).
//
// Thread contract: one thread at a time, the driver thread, calls Step() and
// OnMessage(); any thread may call the other functions at any time. No function
// waits.
//
// Invariants: an operation that was started ends exactly once. A name has at
// most one operation on the board. outstanding() counts operations that have
// not ended and tickets that could not be placed yet.
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "client/engine/progress_engine.h"
#include "client/engine/result_log.h"
#include "common/board/board.h"
#include "common/process_set.h"
#include "common/wire/session_messages.h"

namespace maypole {

// What RankCore needs from outside. The core may hold its lock when it calls a
// function of the shell, so none of them may call a function of the core that
// takes the lock. Only the driver thread calls the last three.
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
  // sets the sleeping flag, so that other ranks wake this one, and returns
  // true.
  virtual bool LeaveAlone(const Operation& operation) = 0;
  // An operation has ended: wakes the threads that wait.
  virtual void Ended() = 0;
  // Shows the user a line.
  virtual void Tell(const std::string& line) = 0;

  // An operation that was submitted while the job's timeline was on has ended
  // (Operation::moments).
  virtual void Record(const Operation& operation) {
    static_cast<void>(operation);
  }
  // A steady clock, in nanoseconds.
  virtual int64_t Now() = 0;

  // See SubmittedOperations.
  virtual bool PatienceIsOver() = 0;
  virtual void Detach(Operation* operation) = 0;
  virtual void Break(Status status) = 0;
};

// An error if two operations of one process set and kind have the same name.
Status CheckDoubles(std::span<const std::shared_ptr<Operation>> operations);

class RankCore : private SubmittedOperations {
 public:
  RankCore(const Board* board, uint32_t local_rank, RankShell* shell);

  // From now on the executor gets checksums of this rank's results. Called
  // before the first operation.
  void EnableChecksums() { checksums_ = true; }
  // Sends those that are kept. Called when the rank leaves.
  void SendAllResults();

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
  void TellWhereItIs();
  // Publishes on the board that this rank is blocked in a wait for the
  // operation; false if that is not certain (for example, it has no slot yet).
  bool SetBlocked(const Operation& operation);
  void ClearBlocked();

  // What a wait for the operation is waiting for now. *late becomes a mask of
  // the local ranks that have not submitted it.
  WaitFor WaitsFor(const Operation& operation, uint64_t* late) const;
  // Counts on the board, for the metrics, that a thread has slept. first: no
  // thread has slept for this operation before.
  void CountSleep(WaitFor what, uint64_t late, uint64_t nanoseconds,
                  bool first) const;

  uint32_t outstanding() const { return outstanding_.load(); }
  // See ProgressEngine::has_enqueued().
  bool has_enqueued() const { return engine_.has_enqueued(); }
  // True if the executor still has to answer a request.
  bool expects_messages() const { return expected_.load() > 0; }
  // True if the executor has asked for slots back: a message waits.
  bool recalled() const {
    return me_.recalls.load(std::memory_order_relaxed) !=
           recalls_answered_.load(std::memory_order_relaxed);
  }
  bool joining() const { return joining_.load(); }
  // Operations that will be passed to RankShell::Record().
  uint32_t unrecorded() const { return unrecorded_.load(); }

 private:
  // A name of this job. At most one operation is current; unnamed operations
  // may queue behind it.
  struct Name {
    uint32_t process_set = 0;
    Kind kind = Kind::kBarrier;
    std::string name;
    bool known = false;  // the executor has allotted a slot
    bool negotiated = false;
    uint32_t slot = 0;
    uint32_t base = 0;  // generation before the name's first
    uint32_t generation = 0;
    bool waiting = false;  // current has arrived and waits for its ticket
    std::shared_ptr<Operation> current;
    std::deque<std::shared_ptr<Operation>> queue;

    bool busy() const { return current != nullptr || !queue.empty(); }
  };
  // A ticket that could not be placed yet.
  struct Held {
    uint32_t slot;
    uint32_t generation;
    uint64_t start;  // where the search for a place began the first time
  };

  // SubmittedOperations
  Operation* Claim(uint32_t slot, uint32_t generation) override;
  uint32_t WaitingGeneration(uint32_t slot) override;
  void Finish(Operation* operation, Status status) override;
  std::vector<Operation*> Waiting() override;
  bool PatienceIsOver() override { return shell_->PatienceIsOver(); }
  void Detach(Operation* operation) override { shell_->Detach(operation); }
  int64_t Now() override { return shell_->Now(); }
  void Break(Status status) override { shell_->Break(std::move(status)); }

  // Submitting. These and all functions below are called under the mutex.
  Status CheckGroup(
      std::span<const std::shared_ptr<Operation>> operations) const;
  Status StartOne(const std::shared_ptr<Operation>& operation);
  void Prepare(Operation& operation);
  void Enqueue(Name& name, std::shared_ptr<Operation> operation);
  void CountIn();
  void CountOut();
  Name& FindName(const Operation& operation, const std::string& key);
  uint64_t RanksNotJoined() const;
  void RequestSlot(Name& name);
  Status CheckReply(const Name& name, const session::SlotReply& reply) const;
  void AllotSlot(const session::SlotReply& reply);
  void OnRecall(const session::SlotRecall& recall);
  bool GiveBack(uint32_t slot);
  void SettleInput(Operation& operation);
  bool FailPendingInputs();
  void Begin(Name& name);  // arrives at the queued operations that can begin
  bool ArriveFirst(Name& name);
  void End(Operation& operation, Status status);
  void CountEnded(const Name& name, const Operation& operation) const;
  void FailQueue(Name& name, const Status& status);
  bool PlaceHeldTickets();

  // Process sets and joins.
  std::shared_ptr<const ProcessSet> SetOf(uint32_t id) const;
  Status StartControl(const std::shared_ptr<Operation>& operation);
  Status RequestSet(const std::shared_ptr<Operation>& operation);
  void OnSetReply(const session::SetReply& reply);
  void BeginJoin(const std::shared_ptr<Operation>& operation);
  bool LookAfterControls();
  bool StandIn();
  bool StandInAt(uint32_t slot);
  bool FindSubmitted(uint32_t slot, uint32_t beyond, Signature* found) const;
  void RequestSlotOf(uint32_t slot);
  void FollowUnnamed(const Name& name);
  Status CheckNotRemoved(
      std::span<const std::shared_ptr<Operation>> operations) const;
  void SettleJoin();
  void EndJoin(const Status& status);
  void FailControls(const Status& status);

  // Checksums (rank_core_results.cc). The caller of NoteResult() and of
  // SendResults() has the mutex.
  bool RecordsResult(const Operation& operation) const {
    return checksums_ && HasEqualResults(operation.signature.kind);
  }
  void NoteResult(const session::ResultRecord& record);
  void SendDueResults();
  void SendResults();

  const Board* const board_;
  const uint32_t local_rank_;
  const int rank_;
  RankBlock& me_;
  RankShell* const shell_;
  ProgressEngine engine_;

  mutable std::mutex mutex_;  // guards all members below except atomics
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::vector<Name*> by_slot_;
  uint32_t slots_end_ = 0;  // this rank has no name in slots from here on
  uint32_t last_request_ = 0;
  std::unordered_map<uint32_t, Name*> by_request_;  // unanswered requests
  // Number of unnamed operations submitted, by process set and kind.
  std::map<uint32_t, std::array<uint64_t, kKinds>> unnamed_;
  EagerPool pool_;
  std::deque<Held> held_;
  bool left_ = false;

  const std::shared_ptr<const ProcessSet> global_set_;
  std::map<uint32_t, std::shared_ptr<const ProcessSet>> sets_;  // except set 0
  std::set<uint32_t> removing_;  // sets whose removal is not answered yet
  uint32_t set_requests_ = 0;    // requests of all ranks made so far
  uint32_t member_requests_ = 0;  // requests of members made so far

  bool checksums_ = false;
  ResultLog results_;

  // Unanswered requests of process sets, by (whether only members make it,
  // number).
  std::map<std::pair<bool, uint32_t>, std::shared_ptr<Operation>> asked_;

  std::shared_ptr<Operation> join_;  // null: no join is pending
  uint32_t joins_ = 0;               // joins that have ended
  bool settled_ = false;             // the executor knows: see SettleJoin()
  std::optional<session::JoinReply> join_reply_;
  uint32_t stand_ins_ = 0;  // pending operations submitted by StandIn()

  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> expected_{0};  // answers that the executor owes
  std::atomic<uint32_t> recalls_answered_{0};
  std::atomic<bool> has_held_{false};
  std::atomic<bool> has_results_{false};
  std::atomic<uint32_t> inputs_pending_{0};  // operations without input_ready
  std::atomic<bool> has_controls_{false};
  std::atomic<bool> joining_{false};
  std::atomic<uint32_t> unrecorded_{0};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_
