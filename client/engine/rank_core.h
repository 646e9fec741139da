// RankCore: a rank's operations, without threads, sockets or clock.
//
// Purpose: keeps names and slots (until the executor asks for them back and no
// operation uses them), process sets and joins; announces operations
// on the board and lets the progress engine carry them out. What it needs from
// outside it asks of a RankShell: the client library (board_communicator.h), or
// a simulation.
//
//   RankCore core(&board, local_rank, &shell);
//   core.Start(operations);            // by any thread
//   while (core.Step()) {}             // by who drives
//   core.OnMessage(bytes);             // from the executor, by who drives
//
// A rank that has joined stands in for itself: while its join is pending, every
// Step() looks for operations that others have submitted and submits them too,
// with inputs that change nothing (rank_core_join.cc).
//
// Thread contract: Step() and OnMessage() by one thread at a time; all others
// by any thread at any time. Nothing waits.
//
// Invariants: an operation that was started ends exactly once; a name has at
// most one operation on the board; outstanding() counts operations that have
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
#include "common/board/board.h"
#include "common/process_set.h"
#include "common/wire/session_messages.h"

namespace maypole {

// Called with the core's lock held, but for the last four, which only who
// drives calls; may not call back.
class RankShell {
 public:
  virtual ~RankShell() = default;
  // A session message to the executor; in order, never lost while both live.
  virtual void Send(const void* message, size_t bytes) = 0;
  virtual void WakeExecutor() = 0;
  // The rank's own threads have something to do.
  virtual void WakeThreads() = 0;
  // Before an arrival: who moves the operation along must wake this rank,
  // unless one of its threads attends. True if none does.
  virtual bool LeaveAlone(const Operation& operation) = 0;
  // An operation has ended: waiters look.
  virtual void Ended() = 0;
  // A line for the user.
  virtual void Tell(const std::string& line) = 0;

  // See SubmittedOperations.
  virtual bool PatienceIsOver() = 0;
  virtual void Detach(Operation* operation) = 0;
  virtual int64_t Now() = 0;
  virtual void Break(Status status) = 0;
};

// An error if a name comes twice (of one process set and kind).
Status CheckDoubles(std::span<const std::shared_ptr<Operation>> operations);

class RankCore : private SubmittedOperations {
 public:
  RankCore(const Board* board, uint32_t local_rank, RankShell* shell);

  // As Communicator::Start.
  Status Start(std::span<const std::shared_ptr<Operation>> operations);
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const;
  // Somebody waits for it or polls it: across nodes it is not held back.
  void Want(const Operation& operation);

  // Does what can be done now; false if nothing could.
  bool Step();
  // A message from the executor, header checked.
  void OnMessage(const std::vector<char>& message);
  // The executor has gone: nothing is answered any more. The board is aborted.
  void LoseExecutor();
  // The rank leaves: everything ends with the status, and nothing starts.
  void Leave();
  void FailAll(const Status& status);

  // Says on the board how far this rank has come; now and then, by who drives.
  void TellWhereItIs();
  // On the board, for what the operation waits; false: for nothing that can be
  // told (it has no slot yet).
  bool SetBlocked(const Operation& operation);
  void ClearBlocked();

  // For what a wait for the operation is now; *late: the local ranks that have
  // not submitted it, as a mask.
  WaitFor WaitsFor(const Operation& operation, uint64_t* late) const;
  // On the board, for the metrics: a thread has slept so long; the first time
  // for that operation.
  void CountSleep(WaitFor what, uint64_t late, uint64_t nanoseconds,
                  bool first) const;

  uint32_t outstanding() const { return outstanding_.load(); }
  // The executor owes an answer.
  bool expects_messages() const { return expected_.load() > 0; }
  // The executor has asked for slots: a message waits.
  bool recalled() const {
    return me_.recalls.load(std::memory_order_relaxed) !=
           recalls_answered_.load(std::memory_order_relaxed);
  }
  bool joining() const { return joining_.load(); }

 private:
  // A name of this job. At most one operation is current; unnamed ones may
  // queue behind it.
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
    uint64_t start;  // of the search, as when it was tried first
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

  // Submitting (under the mutex, as all below).
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
  void Begin(Name& name);  // announces those of the queue that can begin
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

  const Board* const board_;
  const uint32_t local_rank_;
  const int rank_;
  RankBlock& me_;
  RankShell* const shell_;
  ProgressEngine engine_;

  mutable std::mutex mutex_;  // guards what follows, but for atomics
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::vector<Name*> by_slot_;
  uint32_t slots_end_ = 0;  // slots from here on are nobody's here
  uint32_t last_request_ = 0;
  std::unordered_map<uint32_t, Name*> by_request_;  // not answered
  // Unnamed operations submitted, by process set and kind.
  std::map<uint32_t, std::array<uint64_t, kKinds>> unnamed_;
  EagerPool pool_;
  std::deque<Held> held_;
  bool left_ = false;

  const std::shared_ptr<const ProcessSet> global_set_;
  std::map<uint32_t, std::shared_ptr<const ProcessSet>> sets_;  // not 0
  std::set<uint32_t> removing_;  // asked for, not answered
  uint32_t set_requests_ = 0;    // made

  std::map<uint32_t, std::shared_ptr<Operation>> asked_;  // by number

  std::shared_ptr<Operation> join_;  // null: this rank has not joined
  uint32_t joins_ = 0;               // ended
  bool settled_ = false;
  std::optional<session::JoinReply> join_reply_;
  uint32_t stand_ins_ = 0;  // pending

  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> expected_{0};  // messages
  std::atomic<uint32_t> recalls_answered_{0};
  std::atomic<bool> has_held_{false};
  std::atomic<bool> has_controls_{false};
  std::atomic<bool> joining_{false};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_CORE_H_
