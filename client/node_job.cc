#include "client/node_job.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "client/announce.h"
#include "client/cores.h"
#include "common/futex.h"
#include "common/kill_point.h"
#include "common/urgent.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

// After an abort: who writes to an arena for longer is stuck. With the looks
// every kSleepMs, all waits end within a second.
constexpr auto kPatience = std::chrono::milliseconds(700);

}  // namespace

std::string KeyOf(uint32_t process_set, Kind kind, const std::string& name) {
  return std::to_string(process_set) + "/" +
         std::to_string(static_cast<int>(kind)) + "/" + name;
}

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
      pool_(board_, static_cast<uint32_t>(options.local_rank)),
      global_set_(
          std::make_shared<const ProcessSet>(MakeGlobalSet(board_->config()))) {
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
  auto m = session::Make<session::SlotRequest>();
  m.request = static_cast<uint32_t>(by_request_.size());
  m.process_set = name.process_set;
  m.kind = static_cast<uint32_t>(name.kind);
  session::SetText(m.name, name.name);
  by_request_.push_back(&name);
  MAYPOLE_KILL_POINT("slot.wanted");
  awaited_replies_.fetch_add(1);
  SendOrKeep(m);
  MAYPOLE_KILL_POINT("slot.requested");
}

Status NodeJob::Start(std::span<const std::shared_ptr<Operation>> operations) {
  const Operation& first = *operations.front();
  NoteUser();
  if (board_->aborted()) return first.Explain(board_->AbortStatus());
  std::lock_guard lock(table_mutex_);
  if (left_) {
    return Status(Code::kFailedPrecondition,
                  first.Title() + ": this rank has left the job");
  }
  if (join_ != nullptr) {
    return Status(Code::kFailedPrecondition,
                  first.Title() +
                      ": this rank has joined; wait until its join has ended");
  }
  if (first.control != Control::kNone) {
    return StartControl(operations.front());
  }
  if (operations.size() > 1) {
    if (Status s = CheckGroup(operations); !s.ok()) return s;
  }
  for (const std::shared_ptr<Operation>& operation : operations) {
    if (Status s = StartOne(operation); !s.ok()) return s;
  }
  return Status();
}

// After this none of them is refused.
Status NodeJob::CheckGroup(
    std::span<const std::shared_ptr<Operation>> operations) const {
  std::set<std::string> keys;
  for (const std::shared_ptr<Operation>& op : operations) {
    if (op->name.empty()) continue;
    const Signature& s = op->signature;
    const std::string key = KeyOf(s.process_set, s.kind, op->name);
    if (!keys.insert(key).second) {
      return Status(
          Code::kAlreadyExists,
          op->Title() + ": the name comes twice in one group; none of the " +
              std::to_string(operations.size()) + " operations was submitted");
    }
    const auto it = names_.find(key);
    if (it != names_.end() && it->second->busy()) {
      return Status(Code::kAlreadyExists,
                    op->Title() +
                        ": an operation of this name is still pending on this "
                        "rank; none of the group's " +
                        std::to_string(operations.size()) +
                        " operations was submitted");
    }
  }
  return Status();
}

// What the job adds to an operation.
void NodeJob::Prepare(Operation& op) {
  Signature& s = op.signature;
  s.joins = static_cast<uint8_t>(joins_);
  uint64_t offset;
  if (arena_ != nullptr && s.kind == Kind::kAllreduce && s.prescale == 1.0 &&
      op.in_place() && arena_->Find(op.input, s.Bytes(), &offset)) {
    op.arena = offset + 1;
  }
  if (!op.name.empty() && s.kind != Kind::kBarrier) return;
  std::array<uint64_t, kKinds>& counts = unnamed_[s.process_set];
  if (s.kind == Kind::kBarrier) {  // compares them
    s.dims = kMaxDims;
    s.shape[0] = 0;
    for (int kind = 0; kind < kMaxDims - 1; ++kind) {
      s.shape[kind + 1] = static_cast<int64_t>(counts[kind]);
    }
  }
  if (!op.name.empty()) return;
  const uint64_t n = counts[static_cast<int>(s.kind)]++;
  op.name = kUnnamedPrefix + std::to_string(n % kUnnamedSlots);
}

Status NodeJob::StartOne(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  const Signature& s = op.signature;
  const bool unnamed = op.name.empty();
  if (unnamed) Prepare(op);
  Name& name = FindName(op, KeyOf(s.process_set, s.kind, op.name));
  if (!unnamed) {
    if (name.busy()) {
      return Status(Code::kAlreadyExists,
                    op.Title() +
                        ": an operation of this name is still pending on this "
                        "rank; wait for it first, or use another name");
    }
    Prepare(op);
  }
  Enqueue(name, operation);
  return Status();
}

void NodeJob::Enqueue(Name& name, std::shared_ptr<Operation> operation) {
  // Counted first: a waiter that stops attending now sees it. Then, before the
  // arrival is seen: who moves something for us must wake the progress thread,
  // unless somebody attends.
  CountIn();
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
}

// Who has nothing outstanding needs none of the tickets there are.
void NodeJob::CountIn() {
  if (outstanding_.load() == 0) {
    mover_.SkipTickets();
    me_.tickets_read.store(mover_.cursor() + 1, std::memory_order_release);
  }
  outstanding_.fetch_add(1);
}

void NodeJob::CountOut() {
  if (outstanding_.fetch_sub(1) == 1) {
    me_.tickets_read.store(kAllRead, std::memory_order_release);
  }
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
  if (announced.held) {
    CountIn();
    held_.push_back({op.slot, op.generation});
    has_held_.store(true);
  }
  MAYPOLE_KILL_POINT("start.announced");
  if (announced.done) {
    const std::shared_ptr<Operation> keep = std::move(name.current);
    name.current = nullptr;
    name.waiting = false;
    if (!announced.held) mover_.Pass(announced.ticket);
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
  if (operation.stands_in) --stand_ins_;
  operation.done.store(true, std::memory_order_release);
  CountOut();
  // Waiters sleep, but for this thread, if it is one.
  if (waiters_.load() > (this_thread_waits_ ? 1u : 0u)) WakeOwnThreads();
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
  {
    std::lock_guard lock(table_mutex_);
    FailControls(
        Status(Code::kAborted,
               "this rank has left the job (shutdown) before it ended"));
  }
  session_->SayGoodbye(pending);
  session_->Close();
}

// But for what is no operation on tensors: FailControls() does that.
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
