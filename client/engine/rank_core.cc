#include "client/engine/rank_core.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "client/engine/arrival.h"
#include "common/board/kill_point.h"
#include "common/board/urgent.h"

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
      requests_(shell),
      names_(board, local_rank, &requests_),
      sets_(board, &requests_),
      join_(board, local_rank, shell, &requests_, &names_, &sets_),
      results_(shell),
      pool_(board, local_rank) {}

// --- Submitting ------------------------------------------------------------

Status RankCore::Start(std::span<const std::shared_ptr<Operation>> operations) {
  const Operation& first = *operations.front();
  if (board_->aborted()) return first.Explain(board_->AbortStatus());
  std::lock_guard lock(mutex_);
  if (left_) {
    return Status(Code::kFailedPrecondition,
                  first.Title() + ": this rank has left the job");
  }
  if (join_.pending()) {
    return Status(Code::kFailedPrecondition,
                  first.Title() +
                      ": this rank has joined; wait until its join has ended");
  }
  if (first.control == Control::kSetRequest) {
    return RequestSet(operations.front());
  }
  if (first.control == Control::kJoin) {
    BeginJoin(operations.front());
    return Status();
  }
  if (Status s = sets_.CheckNotRemoved(operations); !s.ok()) return s;
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
    const RankName* const name = names_.Find(*op);
    if (name != nullptr && name->busy()) {
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

Status RankCore::StartOne(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  op.signature.joins = static_cast<uint8_t>(join_.joins());
  const bool unnamed = op.name.empty();
  if (unnamed) names_.Number(op);
  RankName& name =
      names_.FindOrAdd(op.signature.process_set, op.signature.kind, op.name);
  if (!unnamed) {
    if (name.busy()) {
      return Status(Code::kAlreadyExists,
                    op.Title() +
                        ": an operation of this name is still pending on this "
                        "rank; wait for it first, or use another name");
    }
    names_.Number(op);
  }
  Enqueue(name, operation);
  return Status();
}

Status RankCore::RequestSet(const std::shared_ptr<Operation>& operation) {
  const Operation& op = *operation;
  if (Status s = sets_.CheckRequest(op); !s.ok()) return s;
  const RankName* const busy =
      op.removes == 0 ? nullptr : names_.FindBusy(op.removes);
  if (busy != nullptr) {
    return Status(Code::kFailedPrecondition,
                  op.Title() + ": " + std::string(Name(busy->kind)) + " '" +
                      busy->name +
                      "' is still pending on it; wait for it first");
  }
  CountIn();
  sets_.Request(operation);
  UpdateControls();
  shell_->WakeThreads();
  return Status();
}

void RankCore::BeginJoin(const std::shared_ptr<Operation>& operation) {
  CountIn();
  join_.Begin(operation);
  UpdateControls();
  shell_->WakeThreads();
}

void RankCore::Enqueue(RankName& name, std::shared_ptr<Operation> operation) {
  // Counted first, so that a waiter that stops driving now sees it. Then the
  // shell sets the sleeping flag, before other ranks can see the arrival.
  CountIn();
  const bool unattended = shell_->MarkUnattended(*operation);
  if (board_->header().timeline.load(std::memory_order_relaxed) % 2 == 1) {
    operation->moments.submitted = shell_->Now();
    unrecorded_.fetch_add(1);
  }
  if (!operation->input_ready) inputs_pending_.fetch_add(1);
  name.queue.push_back(std::move(operation));
  Begin(name);
  // The slot was requested before the sleeping flag was set: a reply that has
  // already come has woken no thread.
  if (unattended && !name.known) shell_->WakeThreads();
}

// A rank with nothing outstanding needs none of the tickets queued so far.
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

void RankCore::Begin(RankName& name) {
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
  SetInputReady(op);
  shell_->MarkUnattended(op);  // before other ranks can see the arrival
  Begin(*names_.Find(op));
  // The operation may have failed, or its ticket may have found no room: only
  // the driver thread can continue.
  if (!op.done.load()) shell_->WakeThreads();
}

void RankCore::SetInputReady(Operation& op) {
  if (std::exchange(op.input_ready, true)) return;
  inputs_pending_.fetch_sub(1);
}

// The epoch has ended: these operations end now, not when their inputs are
// ready.
bool RankCore::FailPendingInputs() {
  std::lock_guard lock(mutex_);
  const uint32_t before = inputs_pending_.load();
  names_.ForEach([this](RankName& name) {
    if (name.current == nullptr) FailQueue(name, board_->AbortStatus());
  });
  return inputs_pending_.load() != before;
}

void RankCore::InputFailed(const Operation& op, const Status& error) {
  if (op.done.load(std::memory_order_acquire)) return;
  board_->Abort(error.code(), "rank " + std::to_string(rank_) + ": " +
                                  op.Explain(error).message());
}

// Arrives at the first operation of the queue. True if it has already ended.
bool RankCore::ArriveFirst(RankName& name) {
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
    if (results_.Wants(*keep)) results_.Add(MakeResultRecord(*keep, true));
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
  RankName* const name = names_.At(slot);
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
  RankName* const name = names_.At(slot);
  return name != nullptr && name->waiting ? name->generation : 0;
}

void RankCore::Finish(Operation* operation, Status status) {
  const bool records = results_.Wants(*operation);
  session::ResultRecord record;
  if (records) record = MakeResultRecord(*operation, status.ok());
  std::lock_guard lock(mutex_);
  if (records) results_.Add(record);
  RankName* const name = names_.At(operation->slot);
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
  if (operation.stands_in) join_.OnStandInEnded();
  SetInputReady(operation);
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

// The executor reads the heartbeat: it considers a rank without one frozen.
// Ranks that queue tickets read tickets_read.
void RankCore::PublishPosition() {
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
    moved |= StepControls();
  }
  if (inputs_pending_.load(std::memory_order_relaxed) > 0 &&
      board_->aborted()) {
    moved |= FailPendingInputs();
  }
  if (results_.waits()) {
    std::lock_guard lock(mutex_);
    results_.SendDue(shell_->Now());
  }
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
    join_.OnReply(join);
  } else if (session::Parse(message.data(), message.size(), &recall).ok()) {
    OnRecall(recall);
  } else if (session::Parse(message.data(), message.size(), &notice).ok()) {
    shell_->ShowUser(notice.text);
  }
}

void RankCore::AllotSlot(const session::SlotReply& reply) {
  std::lock_guard lock(mutex_);
  RankName* const name = names_.TakeRequested(reply.request);
  if (name == nullptr) return;
  if (const Status s = names_.Allot(*name, reply); !s.ok()) {
    FailQueue(*name, s);
    names_.Remove(*name);
    return;
  }
  Begin(*name);
}

void RankCore::OnSetReply(const session::SetReply& reply) {
  std::lock_guard lock(mutex_);
  auto [operation, status] = sets_.OnReply(reply);
  if (operation == nullptr) return;
  UpdateControls();
  End(*operation, std::move(status));
}

// Gives the requested slots back unless they are in use. After that they may
// become other names' slots.
void RankCore::OnRecall(const session::SlotRecall& recall) {
  std::lock_guard lock(mutex_);
  MAYPOLE_KILL_POINT("slot.recalled");
  // The executor finds an operation by its slot as long as this rank keeps it.
  results_.SendAll();
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
  const RankName* const name = names_.At(slot);
  if (name == nullptr) return true;
  const bool held = std::any_of(held_.begin(), held_.end(),
                                [&](const Held& h) { return h.slot == slot; });
  if (name->busy() || held) return false;
  names_.Remove(*name);
  return true;
}

std::shared_ptr<const ProcessSet> RankCore::FindSet(uint32_t id) const {
  if (id == 0) return sets_.global();
  std::lock_guard lock(mutex_);
  return sets_.Find(id);
}

bool RankCore::StepControls() {
  std::lock_guard lock(mutex_);
  if (board_->aborted()) {
    FailControls(board_->AbortStatus());
    return true;
  }
  if (!join_.pending()) return false;
  if (!join_.answered()) return StandIn();
  if (!join_.may_end()) return false;
  EndJoin(join_.End());
  return true;
}

bool RankCore::StandIn() {
  const uint32_t slots =
      std::min(board_->header().allotted.load(std::memory_order_acquire),
               board_->config().slots);
  bool moved = false;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    std::shared_ptr<Operation> operation = join_.StandIn(slot);
    if (operation == nullptr) continue;
    Enqueue(*names_.At(slot), std::move(operation));
    moved = true;
  }
  join_.ReportIdle(outstanding_.load());
  return moved;
}

void RankCore::EndJoin(
    const std::pair<std::shared_ptr<Operation>, Status>& join) {
  UpdateControls();
  End(*join.first, join.second);
}

void RankCore::FailControls(const Status& status) {
  for (const auto& op : sets_.TakePending()) End(*op, op->Explain(status));
  if (join_.pending()) EndJoin(join_.Fail(status));
  UpdateControls();
}

void RankCore::FailQueue(RankName& name, const Status& status) {
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
  const RankName* const name = names_.At(op.slot);
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
    // when its slot is allotted, or when its predecessor in a queue ends.
    if (has_held_.load() || sets_.pending() > 1 || names_.AnyQueued()) {
      return false;
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
  names_.ForEach([&](RankName& name) { FailQueue(name, status); });
  FailControls(status);
  requests_.Forget();
}

void RankCore::Leave() {
  std::lock_guard lock(mutex_);
  left_ = true;
}

void RankCore::FailAll(const Status& status) {
  std::lock_guard lock(mutex_);
  names_.ForEach([&](RankName& name) {
    FailQueue(name, status);
    if (name.current == nullptr) return;
    // Peers that have not noticed the abort yet may still write to the tensor.
    if (name.current->arena != 0) shell_->Detach(name.current.get());
    const std::shared_ptr<Operation> op = std::move(name.current);
    name.current = nullptr;
    name.waiting = false;
    End(*op, op->Explain(status));
  });
  FailControls(status);
}

// --- Counters for the metrics (RankCounters) ---------------------------------

// Called under the mutex. Costs two plain additions in a cache line of this
// rank.
void RankCore::CountEnded(const RankName& name, const Operation& op) const {
  if (name.negotiated) return;  // the executor counts it
  const bool first = op.set->locals.front() == local_rank_;
  // In an alltoall each rank has its own result.
  if (!first && name.kind != Kind::kAlltoall) return;
  const int kind = static_cast<int>(name.kind);
  if (first) Grow(me_.counters.operations[kind], 1);
  Grow(me_.counters.operation_bytes[kind], op.result_bytes());
}

uint64_t RankCore::RanksNotJoined() const {
  uint64_t ranks = 0;
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    const RankBlock& rank = board_->rank(i);
    const bool left = rank.state.load(std::memory_order_relaxed) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const bool aside = rank.aside.load(std::memory_order_relaxed) != 0;
    if (i != local_rank_ && !left && !aside) ranks |= uint64_t{1} << i;
  }
  return ranks;
}

WaitFor RankCore::WaitsFor(const Operation& op, uint64_t* late) const {
  *late = 0;
  const bool alone = board_->config().nodes == 1;
  if (op.control == Control::kJoin) {
    *late = RanksNotJoined();
    if (*late != 0) return WaitFor::kRanks;
    return alone ? WaitFor::kAgent : WaitFor::kNodes;
  }
  if (op.control != Control::kNone) return WaitFor::kAgent;
  std::lock_guard lock(mutex_);
  if (!op.input_ready) return WaitFor::kInput;
  // If it queues behind another operation of its name, the wait is for that
  // operation.
  const RankName* const found = names_.Find(op);
  if (found == nullptr || !found->known) return WaitFor::kAgent;
  const RankName& name = *found;
  if (!name.waiting) return WaitFor::kData;
  for (const uint32_t i : op.set->locals) {
    const uint32_t reached = board_->arrival(name.slot, i)
                                 .generation.load(std::memory_order_relaxed);
    if (reached < name.generation) *late |= uint64_t{1} << i;
  }
  if (*late != 0) return WaitFor::kRanks;
  const uint64_t on_gpus =
      board_->slot(name.slot).on_gpus.load(std::memory_order_relaxed);
  const bool runs = !name.negotiated || TagOf(on_gpus) == name.generation;
  return runs ? WaitFor::kData : WaitFor::kNodes;
}

// Atomic additions, because several threads of the rank may wait.
void RankCore::CountSleep(WaitFor what, uint64_t late, uint64_t nanoseconds,
                          bool first) const {
  RankCounters& counters = me_.counters;
  const auto i = static_cast<size_t>(what);
  if (first) counters.waits[i].fetch_add(1, std::memory_order_relaxed);
  counters.wait_ns[i].fetch_add(nanoseconds, std::memory_order_relaxed);
  for (; late != 0; late &= late - 1) {
    counters.waited_for_ns[std::countr_zero(late)].fetch_add(
        nanoseconds, std::memory_order_relaxed);
  }
}

}  // namespace maypole
