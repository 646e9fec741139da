#include "client/node_job.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "client/announce.h"
#include "client/cores.h"
#include "common/futex.h"
#include "common/kill_point.h"
#include "common/urgent.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// Bound of one sleep; also how soon an executor's death is seen.
constexpr int kSleepMs = 100;
// The same while nothing is outstanding.
constexpr int kIdleSleepMs = 1000;
// A waiter yields from then on, though there seem to be cores for all.
constexpr auto kPoliteAfter = std::chrono::microseconds(20);
// After an abort: who writes to an arena for longer is stuck. With the looks
// every kSleepMs, all waits end within a second.
constexpr auto kPatience = std::chrono::milliseconds(700);

thread_local bool this_thread_waits = false;

std::string KeyOf(uint32_t process_set, Kind kind, const std::string& name) {
  return std::to_string(process_set) + "/" +
         std::to_string(static_cast<int>(kind)) + "/" + name;
}

}  // namespace

Status NodeJob::Join(const Options& options, std::unique_ptr<NodeJob>* out) {
  std::unique_ptr<AgentSession> session;
  if (Status s = AgentSession::Join(options, &session); !s.ok()) return s;
  std::shared_ptr<Arena> arena;
  if (Status s = Arena::Map(session->board(),
                            static_cast<uint32_t>(options.local_rank), &arena);
      !s.ok()) {
    return s;
  }
  out->reset(new NodeJob(options, std::move(session)));
  (*out)->arena_ = std::move(arena);
  return Status();
}

NodeJob::NodeJob(const Options& options, std::unique_ptr<AgentSession> session)
    : options_(options),
      session_(std::move(session)),
      board_(&session_->board()),
      me_(board_->rank(static_cast<uint32_t>(options.local_rank))),
      mover_(board_, static_cast<uint32_t>(options.local_rank), this),
      by_slot_(board_->config().slots, nullptr),
      pool_(board_, static_cast<uint32_t>(options.local_rank)) {
  const BoardConfig& config = board_->config();
  homogeneous_ = config.local_size * config.nodes == config.size;
  const WaitPolicy waiting =
      ChooseWaitPolicy(AffinityCores(), CpuQuota(ReadFilesUnder("/")),
                       config.local_size, config.nodes);
  yields_ = waiting.yields;
  spin_ = options_.spin_microseconds >= 0
              ? std::chrono::microseconds(options_.spin_microseconds)
              : waiting.spin;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  progress_ = std::thread([this] { ProgressLoop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

NodeJob::~NodeJob() { Leave(); }

void NodeJob::AbandonInChild() { session_->Abandon(); }

// --- Submitting -------------------------------------------------------------

std::string NodeJob::NameUnnamed(Kind kind) {
  const uint64_t n = unnamed_[static_cast<int>(kind)]++;
  return "unnamed." + std::to_string(n % kUnnamedSlots);
}

NodeJob::Name& NodeJob::FindName(const Operation& op, const std::string& key) {
  std::unique_ptr<Name>& entry = names_[key];
  if (entry == nullptr) {
    entry = std::make_unique<Name>();
    entry->process_set = op.signature.process_set;
    entry->kind = op.signature.kind;
    entry->name = op.name;
    RequestSlot(*entry);
  }
  return *entry;
}

void NodeJob::RequestSlot(Name& name) {
  const auto request = static_cast<uint32_t>(by_request_.size());
  by_request_.push_back(&name);
  MAYPOLE_KILL_POINT("slot.wanted");
  awaited_replies_.fetch_add(1);
  const Status s =
      session_->RequestSlot(request, name.process_set, name.kind, name.name);
  // A full socket: the driver sends again. A broken one: the driver sees it.
  if (!s.ok()) unsent_requests_.push_back(request);
  MAYPOLE_KILL_POINT("slot.requested");
}

Status NodeJob::Start(std::shared_ptr<Operation> operation) {
  if (board_->aborted()) {
    return operation->Explain(board_->AbortStatus());
  }
  std::lock_guard lock(table_mutex_);
  if (left_) {
    return Status(Code::kFailedPrecondition,
                  operation->Title() + ": this rank has left the job");
  }
  const Signature& s = operation->signature;
  const bool unnamed = operation->name.empty();
  uint64_t offset;
  if (arena_ != nullptr && s.kind == Kind::kAllreduce && s.prescale == 1.0 &&
      operation->in_place() &&
      arena_->Find(operation->input, s.Bytes(), &offset)) {
    operation->arena = offset + 1;
  }
  if (unnamed) operation->name = NameUnnamed(s.kind);
  Name& name =
      FindName(*operation, KeyOf(s.process_set, s.kind, operation->name));
  if (!unnamed && (name.current != nullptr || !name.queue.empty())) {
    return Status(Code::kAlreadyExists,
                  operation->Title() +
                      ": an operation of this name is still pending on this "
                      "rank; wait for it first, or use another name");
  }
  // Counted first: a waiter that stops attending now sees it. Then, before the
  // arrival is seen: who moves something for us must wake the progress thread,
  // unless somebody attends.
  outstanding_.fetch_add(1);
  const bool left_alone = !operation->awaited && waiters_.load() == 0;
  if (left_alone) {
    me_.sleeping.store(1, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("start.flag");
  }
  name.queue.push_back(std::move(operation));
  Begin(name);
  // The slot was asked for before the flag was up: if the reply has come
  // already, it has woken nobody.
  if (left_alone && !name.known) WakeOwnThreads();
  return Status();
}

void NodeJob::Begin(Name& name) {
  // A generation begun now would only hide from slower ranks what became of
  // the one before.
  if (board_->aborted()) return FailQueue(name, board_->AbortStatus());
  while (name.known && name.current == nullptr && !name.queue.empty()) {
    if (!AnnounceFirst(name)) return;
  }
}

// True if it has ended at once.
bool NodeJob::AnnounceFirst(Name& name) {
  name.current = std::move(name.queue.front());
  name.queue.pop_front();
  Operation& op = *name.current;
  op.slot = name.slot;
  op.generation = ++name.generation;
  name.waiting = true;
  const Announced announced =
      Announce(*board_, static_cast<uint32_t>(options_.local_rank),
               mover_.cursor(), op, name.negotiated, &pool_);
  if (announced.wake_executor) session_->WakeExecutor();
  MAYPOLE_KILL_POINT("start.announced");
  if (announced.done) {
    const std::shared_ptr<Operation> keep = std::move(name.current);
    name.current = nullptr;
    name.waiting = false;
    mover_.Pass(announced.ticket);
    End(*keep, Status());
    return true;
  }
  // A failure after this look is counted on the board, and seen there.
  if (board_->OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    mover_.RecheckFailures();
  }
  return false;
}

// --- OperationTable (called by who drives) ----------------------------------

Operation* NodeJob::Claim(uint32_t slot, uint32_t generation) {
  std::lock_guard lock(table_mutex_);
  Name* name = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  if (name == nullptr || !name->waiting || name->generation != generation) {
    return nullptr;
  }
  name->waiting = false;
  return name->current.get();
}

uint32_t NodeJob::WaitingGeneration(uint32_t slot) {
  std::lock_guard lock(table_mutex_);
  Name* name = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  return name != nullptr && name->waiting ? name->generation : 0;
}

std::vector<Operation*> NodeJob::Waiting() {
  std::lock_guard lock(table_mutex_);
  std::vector<Operation*> all;
  for (Name* name : by_slot_) {
    if (name != nullptr && name->waiting) all.push_back(name->current.get());
  }
  return all;
}

void NodeJob::Finish(Operation* operation, Status status) {
  std::lock_guard lock(table_mutex_);
  Name* name = by_slot_[operation->slot];
  // The handle may be released the moment `done` is seen; this keeps it.
  const std::shared_ptr<Operation> keep = std::move(name->current);
  name->current = nullptr;
  name->waiting = false;
  End(*keep, std::move(status));
  Begin(*name);
}

void NodeJob::End(Operation& operation, Status status) {
  operation.status = std::move(status);
  operation.done.store(true, std::memory_order_release);
  outstanding_.fetch_sub(1);
  // Waiters sleep, but for this thread, if it is one.
  if (waiters_.load() > (this_thread_waits ? 1u : 0u)) WakeOwnThreads();
}

bool NodeJob::PatienceIsOver() {
  const auto now = Clock::now();
  if (abort_seen_ == Clock::time_point{}) abort_seen_ = now;
  return now - abort_seen_ > kPatience;
}

void NodeJob::Detach(Operation* operation) {
  // Without memory for a copy the tensor stays where it is: it is undefined
  // anyway, the error says so.
  (void)arena_->Detach(operation->output, operation->signature.Bytes());
}

int64_t NodeJob::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

void NodeJob::Break(Status status) {
  session_->SayGoodbye(std::max(1u, outstanding_.load()));
  board_->Abort(status.code(), "rank " + std::to_string(options_.rank) + ": " +
                                   status.message());
}

// --- Driving ----------------------------------------------------------------

bool NodeJob::Drive(bool look_at_socket) {
  if (closed_) return false;
  bool moved = mover_.Step();
  if (awaited_replies_.load() > 0 || look_at_socket) moved |= ReadReplies();
  return moved;
}

bool NodeJob::ReadReplies() {
  bool moved = ResendRequests();
  for (;;) {
    bool got = false;
    session::SlotReply reply;
    const Status s = session_->NextReply(&got, &reply);
    if (!s.ok()) {
      LoseExecutor(s.message());
      return moved;
    }
    if (!got) return moved;
    AllotSlot(reply);
    moved = true;
  }
}

bool NodeJob::ResendRequests() {
  std::lock_guard lock(table_mutex_);
  while (!unsent_requests_.empty()) {
    const uint32_t request = unsent_requests_.front();
    const Name& name = *by_request_[request];
    if (!session_->RequestSlot(request, name.process_set, name.kind, name.name)
             .ok()) {
      return false;
    }
    unsent_requests_.pop_front();
  }
  return false;
}

// The slot must be the name's: two names in one slot would mix their tensors.
Status NodeJob::CheckReply(const Name& name,
                           const session::SlotReply& reply) const {
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  const bool fits =
      reply.slot < by_slot_.size() &&
      board_->slot(reply.slot).identity.load(std::memory_order_acquire) ==
          IdentityHash(name.process_set, name.kind, name.name);
  if (fits) return Status();
  return Status(Code::kInternal, "the executor allotted slot " +
                                     std::to_string(reply.slot) +
                                     ", which is not this operation's");
}

void NodeJob::AllotSlot(const session::SlotReply& reply) {
  std::lock_guard lock(table_mutex_);
  // A reply answers one request, once.
  if (reply.request >= by_request_.size()) return;
  Name* const asked = by_request_[reply.request];
  if (asked == nullptr || asked->known) return;
  awaited_replies_.fetch_sub(1);
  Name& name = *asked;
  if (const Status s = CheckReply(name, reply); !s.ok()) {
    FailQueue(name, s);
    const std::string key = KeyOf(name.process_set, name.kind, name.name);
    by_request_[reply.request] = nullptr;
    names_.erase(key);
    return;
  }
  MAYPOLE_KILL_POINT("slot.allotted");
  name.known = true;
  name.negotiated = reply.negotiated != 0;
  name.slot = reply.slot;
  // Earlier members of this rank (an elastic job) may have used the slot.
  name.generation =
      board_->arrival(reply.slot, static_cast<uint32_t>(options_.local_rank))
          .generation.load(std::memory_order_acquire);
  by_slot_[reply.slot] = &name;
  Begin(name);
}

void NodeJob::FailQueue(Name& name, const Status& status) {
  while (!name.queue.empty()) {
    const std::shared_ptr<Operation> op = std::move(name.queue.front());
    name.queue.pop_front();
    End(*op, op->Explain(status));
  }
}

// The executor's death ends the epoch; whoever sees it first says so to all.
void NodeJob::LoseExecutor(const std::string& how) {
  if (!board_->aborted()) {
    board_->Abort(Code::kAborted, "the executor of this node (agent " +
                                      options_.agent + ") died: " + how +
                                      "; see the agent's log");
  }
  // Operations that wait for a slot number will never get one.
  const Status status = board_->AbortStatus();
  std::lock_guard lock(table_mutex_);
  for (auto& [key, name] : names_) FailQueue(*name, status);
  awaited_replies_.store(0);
}

bool NodeJob::SleepOnBoard(const Operation& operation, int timeout_ms,
                           bool* interrupted) {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  me_.sleeping.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("sleep.flag");
  {
    std::lock_guard lock(drive_mutex_);
    if (Drive(false)) return true;
  }
  // Another thread may have ended it before `seen` was read.
  if (operation.done.load(std::memory_order_acquire)) return true;
  MAYPOLE_KILL_POINT("sleep.looked");
  const FutexResult r = FutexWait(me_.wake, seen, timeout_ms);
  MAYPOLE_KILL_POINT("sleep.over");
  if (r == FutexResult::kInterrupted) *interrupted = true;
  if (r != FutexResult::kTimeout) return true;
  std::lock_guard lock(drive_mutex_);
  return Drive(true);
}

void NodeJob::WakeOwnThreads() {
  me_.wake.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(me_.wake);
}

// The last waiter leaves others' work to the progress thread, and other waiters
// to whoever wakes the rank.
void NodeJob::StopAttending() {
  const bool others_wait = waiters_.fetch_sub(1) > 1;
  if (!others_wait && outstanding_.load() == 0) return;
  me_.sleeping.store(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("attend.flag");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool more;
  {
    std::lock_guard lock(drive_mutex_);
    more = Drive(false);
  }
  if (more) WakeOwnThreads();
}

void NodeJob::Want(const Operation& op) {
  if (board_->config().nodes == 1 || op.awaited || op.wanted.exchange(true)) {
    return;
  }
  std::lock_guard lock(table_mutex_);
  // The operation's numbers are written with `current`, under this mutex.
  Name* name = op.slot < by_slot_.size() ? by_slot_[op.slot] : nullptr;
  const bool announced = name != nullptr && name->current.get() == &op;
  if (!announced || !name->waiting || !name->negotiated) return;
  if (RaiseUrgency(*board_, op.slot, op.generation, op.urgency()) &&
      board_->AllArrived(op.slot, op.generation) && MakeNews(*board_, op)) {
    session_->WakeExecutor();
  }
}

void NodeJob::Poke(const Operation& operation) {
  if (outstanding_.load() == 0) return;
  Want(operation);
  std::unique_lock lock(drive_mutex_, std::try_to_lock);
  if (lock.owns_lock()) Drive(false);
}

Status NodeJob::Await(const Operation& operation, int timeout_ms) {
  if (operation.done.load(std::memory_order_acquire)) return Status();
  const auto start = Clock::now();
  const auto left = [&]() -> int64_t {
    if (timeout_ms < 0) return kSleepMs;
    return timeout_ms - std::chrono::duration_cast<std::chrono::milliseconds>(
                            Clock::now() - start)
                            .count();
  };
  Want(operation);
  waiters_.fetch_add(1);
  this_thread_waits = true;
  me_.sleeping.store(0, std::memory_order_relaxed);
  MAYPOLE_KILL_POINT("wait.begun");
  auto idle_since = start;
  Status result;
  while (!operation.done.load(std::memory_order_acquire)) {
    bool moved;
    {
      std::lock_guard lock(drive_mutex_);
      moved = Drive(false);
    }
    if (moved) {
      idle_since = Clock::now();
      continue;
    }
    if (operation.done.load(std::memory_order_acquire)) break;
    const auto idle = Clock::now() - idle_since;
    if (idle < spin_) {
      // Two ranks on one core, for a third process has the other one: who
      // waited without yielding would wait for itself.
      if (yields_ || idle > kPoliteAfter) {
        sched_yield();
      }
      continue;
    }
    if (left() <= 0) {
      result = Status(Code::kDeadlineExceeded,
                      operation.Title() + " is still pending");
      break;
    }
    bool interrupted = false;
    if (SleepOnBoard(operation,
                     static_cast<int>(std::min<int64_t>(kSleepMs, left())),
                     &interrupted)) {
      idle_since = Clock::now();
    }
    me_.sleeping.store(0, std::memory_order_relaxed);
    if (interrupted) {
      result = Status(Code::kCancelled, "a signal interrupted the wait");
      break;
    }
  }
  StopAttending();
  this_thread_waits = false;
  return result;
}

void NodeJob::ProgressLoop() {
  while (!stop_.load()) {
    bool moved = false;
    if (waiters_.load() == 0 && outstanding_.load() > 0) {
      std::lock_guard drive(drive_mutex_);
      moved = Drive(false);
    }
    if (!moved) Park();
  }
}

// Waiters attend themselves, and leave the sleeping flag as it must be.
void NodeJob::Park() {
  const uint32_t seen = me_.wake.load(std::memory_order_acquire);
  if (stop_.load()) return;
  if (waiters_.load() == 0 && outstanding_.load() > 0) {
    me_.sleeping.store(1, std::memory_order_seq_cst);
    MAYPOLE_KILL_POINT("park.flag");
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::lock_guard drive(drive_mutex_);
    if (Drive(false)) return;
  }
  const int timeout_ms = outstanding_.load() > 0 ? kSleepMs : kIdleSleepMs;
  if (FutexWait(me_.wake, seen, timeout_ms) != FutexResult::kTimeout) return;
  if (waiters_.load() > 0 || outstanding_.load() == 0) return;
  std::lock_guard drive(drive_mutex_);
  Drive(true);
}

// --- Leaving ----------------------------------------------------------------

void NodeJob::Leave() {
  {
    std::lock_guard lock(table_mutex_);
    if (left_) return;
    left_ = true;
  }
  stop_.store(true);
  WakeOwnThreads();
  progress_.join();
  std::lock_guard drive(drive_mutex_);
  closed_ = true;
  const uint32_t pending = outstanding_.load();
  FailAll(Status(Code::kAborted,
                 "this rank has left the job (shutdown) with the operation "
                 "pending"));
  session_->SayGoodbye(pending);
  session_->Close();
}

void NodeJob::FailAll(const Status& status) {
  std::lock_guard lock(table_mutex_);
  for (auto& [key, name] : names_) {
    FailQueue(*name, status);
    if (name->current == nullptr) continue;
    // Peers that do not know yet may still write to it.
    if (name->current->arena != 0) Detach(name->current.get());
    const std::shared_ptr<Operation> op = std::move(name->current);
    name->current = nullptr;
    name->waiting = false;
    End(*op, op->Explain(status));
  }
}

}  // namespace maypole
