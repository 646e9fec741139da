#include "client/engine/rank_core.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "client/engine/arrival.h"
#include "common/board/kill_point.h"
#include "common/board/urgent.h"
#include "common/unnamed.h"

namespace maypole {

Status CheckDoubles(std::span<const std::shared_ptr<Operation>> operations) {
  if (operations.size() < 2) return Status();
  std::set<std::tuple<uint32_t, Kind, std::string_view>> seen;
  for (const std::shared_ptr<Operation>& op : operations) {
    const Signature& s = op->signature;
    if (op->name.empty() ||
        seen.emplace(s.process_set, s.kind, op->name).second) {
      continue;
    }
    return Status(
        Code::kAlreadyExists,
        op->Title() + ": the name occurs twice in one group; none of its " +
            std::to_string(operations.size()) + " operations was submitted");
  }
  return Status();
}

RankCore::RankCore(const Board* board, uint32_t local_rank, RankShell* shell)
    : board_(board),
      local_rank_(local_rank),
      rank_(board->config().global_rank[local_rank]),
      me_(board->rank(local_rank)),
      shell_(shell),
      engine_(board, local_rank, this),
      by_slot_(board->config().slots, nullptr),
      pool_(board, local_rank),
      global_set_(
          std::make_shared<const ProcessSet>(MakeGlobalSet(board->config()))) {}

// --- Submitting ------------------------------------------------------------

RankCore::Name& RankCore::FindName(const Operation& op,
                                   const std::string& key) {
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

void RankCore::RequestSlot(Name& name) {
  auto m = session::Make<session::SlotRequest>();
  m.request = ++last_request_;
  m.process_set = name.process_set;
  m.kind = static_cast<uint32_t>(name.kind);
  session::SetText(m.name, name.name);
  by_request_[m.request] = &name;
  MAYPOLE_KILL_POINT("slot.wanted");
  expected_.fetch_add(1);
  shell_->Send(&m, sizeof(m));
  MAYPOLE_KILL_POINT("slot.requested");
}

Status RankCore::Start(std::span<const std::shared_ptr<Operation>> operations) {
  const Operation& first = *operations.front();
  if (board_->aborted()) return first.Explain(board_->AbortStatus());
  std::lock_guard lock(mutex_);
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
  if (!removing_.empty()) {
    if (Status s = CheckNotRemoved(operations); !s.ok()) return s;
  }
  if (operations.size() > 1) {
    if (Status s = CheckGroup(operations); !s.ok()) return s;
  }
  for (const std::shared_ptr<Operation>& operation : operations) {
    if (Status s = StartOne(operation); !s.ok()) return s;
  }
  return Status();
}

// If this returns OK, none of the group's operations will be refused.
Status RankCore::CheckGroup(
    std::span<const std::shared_ptr<Operation>> operations) const {
  for (const std::shared_ptr<Operation>& op : operations) {
    if (op->name.empty()) continue;
    const Signature& s = op->signature;
    const auto it = names_.find(IdentityKey(s.process_set, s.kind, op->name));
    if (it != names_.end() && it->second->busy()) {
      return Status(Code::kAlreadyExists,
                    op->Title() +
                        ": an operation of this name is still pending on this "
                        "rank; none of the group's " +
                        std::to_string(operations.size()) +
                        " operations was submitted");
    }
  }
  return CheckDoubles(operations);
}

// Fills in the fields that depend on the job: the number of joins, the name of
// an unnamed operation, and for a barrier how many unnamed operations there
// were.
void RankCore::Prepare(Operation& op) {
  Signature& s = op.signature;
  s.joins = static_cast<uint8_t>(joins_);
  if (!op.name.empty() && s.kind != Kind::kBarrier) return;
  std::array<uint64_t, kKinds>& counts = unnamed_[s.process_set];
  if (s.kind == Kind::kBarrier) {  // a barrier compares the ranks' counts
    s.dims = kMaxDims;
    s.shape[0] = 0;
    for (int kind = 0; kind < kMaxDims - 1; ++kind) {
      s.shape[kind + 1] = static_cast<int64_t>(counts[kind]);
    }
  }
  if (!op.name.empty()) return;
  const uint64_t n = counts[static_cast<int>(s.kind)]++;
  op.name = std::string(kUnnamedPrefix) +
            std::to_string(n % UnnamedNames(s.process_set));
}

Status RankCore::StartOne(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  const Signature& s = op.signature;
  const bool unnamed = op.name.empty();
  if (unnamed) Prepare(op);
  Name& name = FindName(op, IdentityKey(s.process_set, s.kind, op.name));
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

void RankCore::Enqueue(Name& name, std::shared_ptr<Operation> operation) {
  // Counted first, so that a waiter that stops driving now sees it. Then the
  // shell sets the sleeping flag, before other ranks can see the arrival.
  CountIn();
  const bool left_alone = shell_->LeaveAlone(*operation);
  if (board_->header().timeline.load(std::memory_order_relaxed) % 2 == 1) {
    operation->moments.submitted = shell_->Now();
    unrecorded_.fetch_add(1);
  }
  if (!operation->input_ready) inputs_pending_.fetch_add(1);
  name.queue.push_back(std::move(operation));
  Begin(name);
  // The slot was requested before the sleeping flag was set: if the reply has
  // come already, it has woken no thread.
  if (left_alone && !name.known) shell_->WakeThreads();
}

// A rank with nothing outstanding needs none of the tickets placed so far.
void RankCore::CountIn() {
  if (outstanding_.load() == 0) {
    engine_.SkipTickets();
    me_.tickets_read.store(engine_.cursor() + 1, std::memory_order_release);
  }
  outstanding_.fetch_add(1);
}

void RankCore::CountOut() {
  if (outstanding_.fetch_sub(1) == 1) {
    me_.tickets_read.store(kAllRead, std::memory_order_release);
  }
}

void RankCore::Begin(Name& name) {
  // If this rank began another generation now, slower ranks could no longer see
  // the outcome of the previous one.
  if (board_->aborted()) return FailQueue(name, board_->AbortStatus());
  while (name.known && name.current == nullptr && !name.queue.empty() &&
         name.queue.front()->input_ready) {
    if (!ArriveFirst(name)) return;
  }
}

void RankCore::InputReady(const std::shared_ptr<Operation>& operation) {
  std::lock_guard lock(mutex_);
  Operation& op = *operation;
  if (op.input_ready) return;  // or it has failed meanwhile
  SettleInput(op);
  const Signature& s = op.signature;
  shell_->LeaveAlone(op);  // before other ranks can see the arrival
  Begin(*names_.at(IdentityKey(s.process_set, s.kind, op.name)));
  // It may have found the operation failed, or no room for its ticket: only the
  // driver thread can go on.
  if (!op.done.load()) shell_->WakeThreads();
}

void RankCore::SettleInput(Operation& op) {
  if (std::exchange(op.input_ready, true)) return;
  inputs_pending_.fetch_sub(1);
}

// The epoch has ended: these operations end now, not when their inputs are
// ready.
bool RankCore::FailPendingInputs() {
  std::lock_guard lock(mutex_);
  const uint32_t before = inputs_pending_.load();
  for (auto& [key, name] : names_) {
    if (name->current == nullptr) FailQueue(*name, board_->AbortStatus());
  }
  return inputs_pending_.load() != before;
}

void RankCore::InputFailed(const Operation& op, const Status& error) {
  if (op.done.load(std::memory_order_acquire)) return;
  board_->Abort(error.code(), "rank " + std::to_string(rank_) + ": " +
                                  op.Explain(error).message());
}

// Arrives at the first operation of the queue. True if it has already ended.
bool RankCore::ArriveFirst(Name& name) {
  name.current = std::move(name.queue.front());
  name.queue.pop_front();
  Operation& op = *name.current;
  op.slot = name.slot;
  op.generation = ++name.generation;
  name.waiting = true;
  if (op.recorded()) {
    op.moments.arrived = shell_->Now();
    op.moments.number = op.generation - name.base;
  }
  const uint64_t start = engine_.cursor();
  const ArriveResult arrival =
      Arrive(*board_, local_rank_, start, op, name.negotiated, &pool_);
  if (arrival.wake_executor) shell_->WakeExecutor();
  if (arrival.mismatch) Grow(me_.counters.mismatches, 1);
  if (arrival.held) {
    CountIn();
    held_.push_back({op.slot, op.generation, start});
    has_held_.store(true);
  }
  MAYPOLE_KILL_POINT("start.arrived");
  if (arrival.done) {
    const std::shared_ptr<Operation> keep = std::move(name.current);
    name.current = nullptr;
    name.waiting = false;
    if (!arrival.held) engine_.Pass(arrival.ticket);
    CountEnded(name, *keep);
    if (RecordsResult(*keep)) NoteResult(MakeResultRecord(*keep, true));
    End(*keep, Status());
    return true;
  }
  // If the operation fails after this check, the progress engine sees the
  // board's count of failures change.
  if (board_->OutcomeOf(op.slot, op.generation) != Outcome::kRunning) {
    engine_.RecheckFailures();
  }
  return false;
}

// --- SubmittedOperations (called by the driver thread) -----------------------

Operation* RankCore::Claim(uint32_t slot, uint32_t generation) {
  std::lock_guard lock(mutex_);
  Name* name = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  if (name == nullptr || !name->waiting || name->generation != generation) {
    return nullptr;
  }
  name->waiting = false;
  Operation* const op = name->current.get();
  if (op->recorded()) op->moments.begun = shell_->Now();
  return op;
}

uint32_t RankCore::WaitingGeneration(uint32_t slot) {
  std::lock_guard lock(mutex_);
  Name* name = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  return name != nullptr && name->waiting ? name->generation : 0;
}

std::vector<Operation*> RankCore::Waiting() {
  std::lock_guard lock(mutex_);
  std::vector<Operation*> all;
  // Not all of by_slot_, because this is called often between eager operations.
  for (uint32_t slot = 0; slot < slots_end_; ++slot) {
    const Name* name = by_slot_[slot];
    if (name != nullptr && name->waiting) all.push_back(name->current.get());
  }
  return all;
}

void RankCore::Finish(Operation* operation, Status status) {
  const bool records = RecordsResult(*operation);
  session::ResultRecord record;
  if (records) record = MakeResultRecord(*operation, status.ok());
  std::lock_guard lock(mutex_);
  if (records) NoteResult(record);
  Name* name = by_slot_[operation->slot];
  // The user may release the handle as soon as `done` is true; this keeps the
  // operation alive.
  const std::shared_ptr<Operation> keep = std::move(name->current);
  name->current = nullptr;
  name->waiting = false;
  if (status.ok()) CountEnded(*name, *keep);
  if (name->negotiated) pool_.Ended(keep->slot, keep->generation);
  End(*keep, std::move(status));
  Begin(*name);
}

void RankCore::End(Operation& operation, Status status) {
  operation.status = std::move(status);
  if (operation.stands_in) --stand_ins_;
  SettleInput(operation);
  if (operation.recorded()) {
    operation.moments.ended = shell_->Now();
    shell_->Record(operation);
    unrecorded_.fetch_sub(1);
  }
  operation.SetDone();
  CountOut();
  shell_->Ended();
}

// --- Driving -------------------------------------------------------------

// The executor reads the heartbeat: it takes a rank without one for frozen.
// Ranks that place tickets read tickets_read.
void RankCore::TellWhereItIs() {
  me_.heartbeat.fetch_add(1, std::memory_order_relaxed);
  if (me_.tickets_read.load(std::memory_order_relaxed) != kAllRead) {
    std::lock_guard lock(mutex_);
    if (outstanding_.load() > 0) {
      me_.tickets_read.store(engine_.cursor() + 1, std::memory_order_release);
    }
  }
}

bool RankCore::Step() {
  bool moved = engine_.Step();
  if (has_held_.load(std::memory_order_relaxed)) moved |= PlaceHeldTickets();
  if (has_controls_.load(std::memory_order_relaxed)) {
    moved |= LookAfterControls();
  }
  if (inputs_pending_.load(std::memory_order_relaxed) > 0 &&
      board_->aborted()) {
    moved |= FailPendingInputs();
  }
  if (has_results_.load(std::memory_order_relaxed)) SendDueResults();
  return moved;
}

bool RankCore::PlaceHeldTickets() {
  std::lock_guard lock(mutex_);
  bool moved = false;
  while (!held_.empty()) {
    const Held& held = held_.front();
    if (!PlaceHeldTicket(*board_, held.start, held.slot, held.generation))
      break;
    held_.pop_front();
    CountOut();
    moved = true;
  }
  if (held_.empty()) has_held_.store(false);
  return moved;
}

void RankCore::OnMessage(const std::vector<char>& message) {
  session::SlotReply slot;
  session::SetReply set;
  session::JoinReply join;
  session::Notice notice;
  session::SlotRecall recall;
  if (session::Parse(message.data(), message.size(), &slot).ok()) {
    AllotSlot(slot);
  } else if (session::Parse(message.data(), message.size(), &set).ok()) {
    OnSetReply(set);
  } else if (session::Parse(message.data(), message.size(), &join).ok()) {
    std::lock_guard lock(mutex_);
    if (join_ == nullptr || join.number != joins_ + 1) return;
    join_reply_ = join;
  } else if (session::Parse(message.data(), message.size(), &recall).ok()) {
    OnRecall(recall);
  } else if (session::Parse(message.data(), message.size(), &notice).ok()) {
    shell_->Tell(notice.text);
  }
}

// Checks that the slot belongs to the name. Two names in one slot would mix
// their tensors.
Status RankCore::CheckReply(const Name& name,
                            const session::SlotReply& reply) const {
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  const bool fits =
      reply.slot < by_slot_.size() &&
      board_->slot(reply.slot).identity.load(std::memory_order_acquire) ==
          IdentityHash(name.process_set, name.kind, name.name);
  if (fits) return Status();
  return Status(Code::kInternal, "the executor allotted slot " +
                                     std::to_string(reply.slot) +
                                     ", which belongs to another operation");
}

void RankCore::AllotSlot(const session::SlotReply& reply) {
  std::lock_guard lock(mutex_);
  // Ignores a reply without a pending request.
  const auto it = by_request_.find(reply.request);
  if (it == by_request_.end()) return;
  Name& name = *it->second;
  by_request_.erase(it);
  expected_.fetch_sub(1);
  if (const Status s = CheckReply(name, reply); !s.ok()) {
    FailQueue(name, s);
    names_.erase(IdentityKey(name.process_set, name.kind, name.name));
    return;
  }
  MAYPOLE_KILL_POINT("slot.allotted");
  name.known = true;
  name.negotiated = reply.negotiated != 0;
  name.slot = reply.slot;
  name.base = board_->slot(reply.slot).base.load(std::memory_order_relaxed);
  // This rank may have used the name before and given the slot back.
  name.generation = board_->arrival(reply.slot, local_rank_)
                        .generation.load(std::memory_order_acquire);
  by_slot_[reply.slot] = &name;
  slots_end_ = std::max(slots_end_, reply.slot + 1);
  Begin(name);
}

// Gives the requested slots back unless they are in use. After that they may
// become other names' slots.
void RankCore::OnRecall(const session::SlotRecall& recall) {
  std::lock_guard lock(mutex_);
  MAYPOLE_KILL_POINT("slot.recalled");
  // The executor finds an operation by its slot as long as this rank keeps it.
  SendResults();
  auto reply = session::Make<session::SlotReturn>();
  for (uint32_t i = 0; i < std::min(recall.count, kMaxRecall); ++i) {
    if (GiveBack(recall.slots[i])) {
      reply.slots[reply.count++] = recall.slots[i];
    }
  }
  shell_->Send(&reply, sizeof(reply));
  MAYPOLE_KILL_POINT("slot.returned");
  recalls_answered_.fetch_add(1);
}

// True if this rank no longer uses the slot.
bool RankCore::GiveBack(uint32_t slot) {
  Name* const name = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  if (name == nullptr) return true;
  const bool held = std::any_of(held_.begin(), held_.end(),
                                [&](const Held& h) { return h.slot == slot; });
  if (name->busy() || held) return false;
  by_slot_[slot] = nullptr;
  names_.erase(IdentityKey(name->process_set, name->kind, name->name));
  return true;
}

void RankCore::FailQueue(Name& name, const Status& status) {
  while (!name.queue.empty()) {
    const std::shared_ptr<Operation> op = std::move(name.queue.front());
    name.queue.pop_front();
    End(*op, op->Explain(status));
  }
}

void RankCore::Want(const Operation& op) {
  if (board_->config().nodes == 1 || op.awaited || op.wanted.exchange(true)) {
    return;
  }
  std::lock_guard lock(mutex_);
  // op.slot and op.generation are written together with `current`, under this
  // mutex.
  Name* name = op.slot < by_slot_.size() ? by_slot_[op.slot] : nullptr;
  const bool arrival = name != nullptr && name->current.get() == &op;
  if (!arrival || !name->waiting || !name->negotiated) return;
  if (RaiseUrgency(*board_, op.slot, op.generation, op.urgency()) &&
      board_->AllArrived(op.slot, op.generation) &&
      MarkSlotReady(*board_, op)) {
    shell_->WakeExecutor();
  }
}

bool RankCore::SetBlocked(const Operation& op) {
  {
    std::lock_guard lock(mutex_);
    // Not certainly blocked if an operation could begin without another rank:
    // when its slot is allotted, or when the one before it in a queue ends.
    if (has_held_.load() || asked_.size() > 1) return false;
    for (const auto& [key, name] : names_) {
      if (!name->known || !name->queue.empty()) return false;
    }
    uint64_t on =
        op.control == Control::kJoin ? kBlockedInJoin : kBlockedForSet;
    if (op.control == Control::kNone) {
      if (op.generation == 0) return false;
      on = Tagged(op.generation, op.slot);
    }
    me_.blocked_on.store(on, std::memory_order_relaxed);
  }
  me_.blocked_count.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    const RankBlock& rank = board_->rank(i);
    const bool left = rank.state.load(std::memory_order_relaxed) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const uint64_t count = rank.blocked_count.load(std::memory_order_seq_cst);
    if (!left && count % 2 == 0) return true;
  }
  shell_->WakeExecutor();  // all ranks of the node are blocked now
  return true;
}

void RankCore::ClearBlocked() {
  me_.blocked_count.fetch_add(1, std::memory_order_seq_cst);
}

// Operations that wait for a slot will never get one.
void RankCore::LoseExecutor() {
  const Status status = board_->AbortStatus();
  std::lock_guard lock(mutex_);
  for (auto& [key, name] : names_) FailQueue(*name, status);
  FailControls(status);
  expected_.store(0);
}

void RankCore::Leave() {
  std::lock_guard lock(mutex_);
  left_ = true;
}

void RankCore::FailAll(const Status& status) {
  std::lock_guard lock(mutex_);
  for (auto& [key, name] : names_) {
    FailQueue(*name, status);
    if (name->current == nullptr) continue;
    // Peers that have not noticed yet may still write to the tensor.
    if (name->current->arena != 0) shell_->Detach(name->current.get());
    const std::shared_ptr<Operation> op = std::move(name->current);
    name->current = nullptr;
    name->waiting = false;
    End(*op, op->Explain(status));
  }
  FailControls(status);
}

}  // namespace maypole
