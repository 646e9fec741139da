// NodeJob: a rank's operations on its node's board.
//
// Purpose: keeps names and slots, announces operations, and sees to it that the
// mover runs: in a thread that waits (Await), else in the progress thread.
//
//   table mutex   names, slots, who waits for a ticket; held shortly
//   drive mutex   the mover and the socket; held while data moves
//   A thread that holds the drive mutex may take the table mutex, not the other
//   way round.
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
// A rank that has joined stands in for itself: while its join is pending,
// whoever drives looks for operations that others have submitted and submits
// them too, with inputs that change nothing (node_job_join.cc).
//
// Thread contract: as Job. The progress thread takes no signals.
#ifndef MAYPOLE_CLIENT_NODE_JOB_H_
#define MAYPOLE_CLIENT_NODE_JOB_H_

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/job.h"
#include "client/mover.h"
#include "client/session.h"
#include "client/small_pool.h"

namespace maypole {

class NodeJob : public Job, private OperationTable {
 public:
  // Joins the job; blocks until all ranks are there.
  static Status Join(const Options& options, std::unique_ptr<NodeJob>* out);
  ~NodeJob() override;

  Status Start(std::span<const std::shared_ptr<Operation>> operations) override;
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const override;
  void Poke(const Operation& operation) override;
  Status Await(const Operation& operation, int timeout_ms) override;
  void Leave() override;
  bool homogeneous() const override { return homogeneous_; }
  std::shared_ptr<Arena> arena() const override { return arena_; }

  // In a forked child: closes descriptors, unmaps the board. Nothing else of
  // this object may be used afterwards, its destructor included.
  void AbandonInChild();

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
  };

  NodeJob(const Options& options, std::unique_ptr<AgentSession> session);

  // OperationTable
  Operation* Claim(uint32_t slot, uint32_t generation) override;
  uint32_t WaitingGeneration(uint32_t slot) override;
  void Finish(Operation* operation, Status status) override;
  std::vector<Operation*> Waiting() override;
  bool PatienceIsOver() override;
  void Detach(Operation* operation) override;
  int64_t Now() override;
  void Break(Status status) override;

  // Submitting (under the table mutex).
  Status CheckGroup(
      std::span<const std::shared_ptr<Operation>> operations) const;
  Status StartOne(const std::shared_ptr<Operation>& operation);
  void Prepare(Operation& operation);
  void Enqueue(Name& name, std::shared_ptr<Operation> operation);
  void CountIn();
  void CountOut();
  Name& FindName(const Operation& operation, const std::string& key);
  void RequestSlot(Name& name);
  template <typename Message>
  void SendOrKeep(const Message& message);
  void Begin(Name& name);  // announces those of the queue that can begin
  bool AnnounceFirst(Name& name);
  void End(Operation& operation, Status status);

  // Process sets and joins (under the table mutex).
  std::shared_ptr<const ProcessSet> SetOf(uint32_t id) const;
  Status StartControl(const std::shared_ptr<Operation>& operation);
  Status RequestSet(const std::shared_ptr<Operation>& operation);
  void OnSetReply(const session::SetReply& reply);
  void BeginJoin(const std::shared_ptr<Operation>& operation);
  bool StandIn();
  bool StandInAt(uint32_t slot);
  bool FindSubmitted(uint32_t slot, uint32_t beyond, Signature* found) const;
  Name* NameOfSlot(uint32_t slot);
  void FollowUnnamed(const Name& name);
  void SettleJoin();
  void EndJoin(const Status& status);
  void FailControls(const Status& status);

  // Across nodes: what somebody waits for is not held back (fusion).
  void Want(const Operation& operation);

  bool Drive(bool look_at_socket);
  bool PlaceHeldTickets();
  void TellWhereIAm();
  void NoteUser();
  bool SetBlocked(const Operation& operation);
  void ClearBlocked();
  bool ReadReplies();
  void OnMessage(const std::vector<char>& message);
  bool ResendMessages();
  Status CheckReply(const Name& name, const session::SlotReply& reply) const;
  void AllotSlot(const session::SlotReply& reply);
  void FailQueue(Name& name, const Status& status);
  void FailAll(const Status& status);
  void LoseExecutor(const std::string& how);
  // True if there was something to do, or somebody has woken us.
  bool SleepOnBoard(const Operation& operation, int timeout_ms,
                    bool* interrupted);
  void StopAttending();
  void WakeOwnThreads();
  void ProgressLoop();
  void Park();

  static thread_local bool this_thread_waits_;

  const Options options_;
  std::unique_ptr<AgentSession> session_;
  const Board* board_;
  RankBlock& me_;
  bool homogeneous_ = true;
  bool yields_ = false;
  std::chrono::microseconds spin_;

  std::shared_ptr<Arena> arena_;  // null: the board has none
  std::chrono::steady_clock::time_point abort_seen_{};  // by who drives

  std::mutex drive_mutex_;
  Mover mover_;
  bool closed_ = false;  // has left: the mover's operations are gone

  mutable std::mutex table_mutex_;
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::vector<Name*> by_slot_;
  std::vector<Name*> by_request_;
  std::deque<std::vector<char>> unsent_;  // messages, oldest first
  // Unnamed operations submitted, by process set and kind.
  std::map<uint32_t, std::array<uint64_t, kKinds>> unnamed_;
  SmallPool pool_;
  std::deque<Held> held_;
  bool left_ = false;

  const std::shared_ptr<const ProcessSet> global_set_;
  std::map<uint32_t, std::shared_ptr<const ProcessSet>> sets_;  // not 0
  uint32_t set_requests_ = 0;                                   // made
  std::map<uint32_t, std::shared_ptr<Operation>> asked_;        // by number

  std::shared_ptr<Operation> join_;  // null: this rank has not joined
  uint32_t joins_ = 0;               // ended
  bool settled_ = false;
  std::optional<session::JoinReply> join_reply_;
  uint32_t stand_ins_ = 0;  // pending

  std::atomic<uint32_t> awaited_replies_{0};
  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> waiters_{0};
  // What Drive() has to look after, besides the mover; set under the table
  // mutex.
  std::atomic<bool> has_held_{false};
  std::atomic<bool> has_controls_{false};
  uint32_t drives_ = 0;  // under the drive mutex

  // The thread that uses this object, and whether there are several.
  std::atomic<const void*> user_{nullptr};
  std::atomic<bool> several_users_{false};

  std::atomic<bool> stop_{false};
  std::thread progress_;
};

// Of a name, for tables.
std::string KeyOf(uint32_t process_set, Kind kind, const std::string& name);

// What unnamed operations are called: this and a number below kUnnamedSlots.
inline constexpr char kUnnamedPrefix[] = "unnamed.";

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_NODE_JOB_H_
