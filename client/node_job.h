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
// Thread contract: as Job. The progress thread takes no signals.
#ifndef MAYPOLE_CLIENT_NODE_JOB_H_
#define MAYPOLE_CLIENT_NODE_JOB_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
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

  Status Start(std::shared_ptr<Operation> operation) override;
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

  std::string NameUnnamed(Kind kind);
  Name& FindName(const Operation& operation, const std::string& key);
  void RequestSlot(Name& name);
  void Begin(Name& name);  // announces those of the queue that can begin
  bool AnnounceFirst(Name& name);
  void End(Operation& operation, Status status);

  // Across nodes: what somebody waits for is not held back (fusion).
  void Want(const Operation& operation);

  bool Drive(bool look_at_socket);
  bool ReadReplies();
  bool ResendRequests();
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

  std::mutex table_mutex_;
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::vector<Name*> by_slot_;
  std::vector<Name*> by_request_;
  std::deque<uint32_t> unsent_requests_;
  uint64_t unnamed_[kKinds] = {};
  SmallPool pool_;
  bool left_ = false;

  std::atomic<uint32_t> awaited_replies_{0};
  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> waiters_{0};

  std::atomic<bool> stop_{false};
  std::thread progress_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_NODE_JOB_H_
