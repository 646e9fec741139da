// The part of RankCore for process sets and joins.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "client/engine/rank_core.h"
#include "common/reduce/reduce.h"
#include "common/unnamed.h"

namespace maypole {
namespace {

// Gives the operation an input that changes no result. Zeros cost no memory,
// because all pages that are only read are the same zero page.
bool MakeNeutral(Operation& op) {
  const Signature& s = op.signature;
  if (s.Bytes() == 0) return true;
  void* p = mmap(nullptr, s.Bytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  op.neutral = {static_cast<std::byte*>(p), Unmap{s.Bytes()}};
  op.input = op.neutral.get();
  const bool zeros =
      !Reduces(s.kind) || s.op == Op::kSum || s.op == Op::kAverage;
  if (!zeros) {
    FillNeutral(s.dtype, s.op, op.neutral.get(),
                static_cast<size_t>(s.Elements()));
  }
  return true;
}

}  // namespace

// --- Process sets -----------------------------------------------------------

std::shared_ptr<const ProcessSet> RankCore::SetOf(uint32_t id) const {
  if (id == 0) return global_set_;
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : it->second;
}

std::shared_ptr<const ProcessSet> RankCore::FindSet(uint32_t id) const {
  if (id == 0) return global_set_;
  std::lock_guard lock(mutex_);
  return SetOf(id);
}

Status RankCore::StartControl(const std::shared_ptr<Operation>& operation) {
  if (operation->control == Control::kSetRequest) return RequestSet(operation);
  BeginJoin(operation);
  return Status();
}

Status RankCore::RequestSet(const std::shared_ptr<Operation>& operation) {
  const Operation& op = *operation;
  if (op.removes != 0) {
    if (SetOf(op.removes) == nullptr) {
      return Status(Code::kInvalidArgument, op.Title() +
                                                ": there is no process set " +
                                                std::to_string(op.removes));
    }
    for (const auto& [key, name] : names_) {
      if (name->process_set != op.removes || !name->busy()) continue;
      return Status(Code::kFailedPrecondition,
                    op.Title() + ": " + std::string(maypole::Name(name->kind)) +
                        " '" + name->name +
                        "' is still pending on it; wait for it first");
    }
  }
  if (asked_.size() >= kMaxSetRequests) {
    return Status(Code::kResourceExhausted,
                  op.Title() + ": " + std::to_string(kMaxSetRequests) +
                      " requests of this rank are unanswered; wait for one");
  }
  if (op.removes != 0) removing_.insert(op.removes);
  auto m = session::Make<session::SetRequest>();
  m.by_members = op.by_members ? 1 : 0;
  m.number = op.by_members ? ++member_requests_ : ++set_requests_;
  m.remove = op.removes != 0 ? 1 : 0;
  m.process_set = op.removes;
  for (const int rank : op.ranks) {
    m.members[rank / 64] |= uint64_t{1} << rank % 64;
  }
  CountIn();
  asked_[{op.by_members, m.number}] = operation;
  has_controls_.store(true);
  expected_.fetch_add(1);
  shell_->Send(&m, sizeof(m));
  shell_->WakeThreads();
  return Status();
}

// Other ranks may have removed the set already.
Status RankCore::CheckNotRemoved(
    std::span<const std::shared_ptr<Operation>> operations) const {
  for (const std::shared_ptr<Operation>& op : operations) {
    if (!removing_.contains(op->signature.process_set)) continue;
    return Status(Code::kFailedPrecondition,
                  op->Title() + ": the process set is being removed");
  }
  return Status();
}

void RankCore::OnSetReply(const session::SetReply& reply) {
  std::lock_guard lock(mutex_);
  const auto it = asked_.find({reply.by_members != 0, reply.number});
  if (it == asked_.end()) return;
  const std::shared_ptr<Operation> op = std::move(it->second);
  asked_.erase(it);
  expected_.fetch_sub(1);
  has_controls_.store(join_ != nullptr || !asked_.empty());
  removing_.erase(op->removes);
  if (reply.code != 0) {
    End(*op, op->Explain(Status(static_cast<Code>(reply.code), reply.text)));
    return;
  }
  if (op->removes != 0) {
    sets_.erase(op->removes);
  } else {
    sets_[reply.process_set] = std::make_shared<const ProcessSet>(
        MakeProcessSet(board_->config(), reply.process_set, op->ranks));
  }
  op->answer = reply.process_set;
  End(*op, Status());
}

// --- Joins ------------------------------------------------------------------

void RankCore::BeginJoin(const std::shared_ptr<Operation>& operation) {
  CountIn();
  join_ = operation;
  joining_.store(true);
  settled_ = false;
  join_reply_.reset();
  has_controls_.store(true);
  expected_.fetch_add(1);
  // Published on the board before StandIn() reads it: a rank that arrives from
  // now on wakes this rank, and StandIn() finds earlier arrivals.
  board_->header().aside_count.fetch_add(1, std::memory_order_seq_cst);
  me_.aside.store(joins_ + 1, std::memory_order_seq_cst);
  auto m = session::Make<session::JoinRequest>();
  m.number = joins_ + 1;
  shell_->Send(&m, sizeof(m));
  shell_->WakeThreads();
}

bool RankCore::LookAfterControls() {
  std::lock_guard lock(mutex_);
  if (board_->aborted()) {
    FailControls(board_->AbortStatus());
    return true;
  }
  if (join_ == nullptr) return false;
  if (!join_reply_) return StandIn();
  // After an error the operations for which this rank stands in need not end.
  if (stand_ins_ > 0 && join_reply_->code == 0) return false;
  EndJoin(Status(static_cast<Code>(join_reply_->code), join_reply_->text));
  return true;
}

bool RankCore::StandIn() {
  const uint32_t slots =
      std::min(board_->header().allotted.load(std::memory_order_acquire),
               board_->config().slots);
  bool moved = false;
  for (uint32_t slot = 0; slot < slots; ++slot) moved |= StandInAt(slot);
  SettleJoin();
  return moved;
}

// Finds a signature that a member has submitted, or the executor wants, after
// generation `beyond` of the slot; ignores what was submitted after this join.
bool RankCore::FindSubmitted(uint32_t slot, uint32_t beyond,
                             Signature* found) const {
  const uint64_t members = board_->Members(slot);
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    if ((members >> i & 1) == 0) continue;
    const uint32_t reached =
        board_->arrival(slot, i).generation.load(std::memory_order_seq_cst);
    if (reached <= beyond) continue;
    *found = board_->SignatureOf(slot, i, beyond + 1);
    if (found->joins == static_cast<uint8_t>(joins_)) return true;
  }
  return board_->Wanted(slot, found) > beyond;
}

// A rank may use a slot only after it has requested it: the executor asks only
// these ranks to give it back before it allots the slot to another name.
void RankCore::RequestSlotOf(uint32_t slot) {
  uint32_t set = 0;
  Kind kind = Kind::kBarrier;
  std::string name;
  if (!board_->ReadIdentity(slot, &set, &kind, &name) ||
      SetOf(set) == nullptr) {
    return;
  }
  std::unique_ptr<Name>& entry = names_[IdentityKey(set, kind, name)];
  if (entry != nullptr) return;  // requested, but not answered yet
  entry = std::make_unique<Name>();
  entry->process_set = set;
  entry->kind = kind;
  entry->name = std::move(name);
  RequestSlot(*entry);
}

// After the join, this rank's next unnamed operation must have the same number
// as the others'. The number follows from the name and generation, because
// StandIn() may find the operations in any order.
void RankCore::FollowUnnamed(const Name& name) {
  const std::optional<uint64_t> number =
      UnnamedNumber(name.process_set, name.name);
  if (!number) return;
  const uint64_t before =
      (name.generation - name.base) * UnnamedNames(name.process_set);
  uint64_t& count = unnamed_[name.process_set][static_cast<size_t>(name.kind)];
  count = std::max(count, before + *number + 1);
}

bool RankCore::StandInAt(uint32_t slot) {
  if (board_->slot(slot).identity.load(std::memory_order_acquire) == 0 ||
      (board_->Members(slot) >> local_rank_ & 1) == 0) {
    return false;
  }
  Signature s;
  const uint32_t reached =
      by_slot_[slot] != nullptr
          ? by_slot_[slot]->generation
          : board_->arrival(slot, local_rank_)
                .generation.load(std::memory_order_relaxed);
  if (!FindSubmitted(slot, reached, &s)) return false;
  Name* const name = by_slot_[slot];
  if (name == nullptr) RequestSlotOf(slot);
  if (name == nullptr || name->busy()) return false;
  auto op = std::make_shared<Operation>();
  op->name = name->name;
  op->stands_in = true;
  op->signature = s;
  op->signature.aside = 1;
  op->signature.joins = static_cast<uint8_t>(joins_);
  op->set = SetOf(name->process_set);
  if (Gathers(s.kind)) {
    op->signature.shape[0] = 0;
  }
  if (s.kind == Kind::kAlltoall) op->splits.assign(op->set->ranks.size(), 0);
  const bool is_root = s.kind == Kind::kBroadcast && s.root == rank_;
  if ((Reduces(s.kind) || is_root) && !MakeNeutral(*op)) {
    shell_->Break(Status(Code::kResourceExhausted,
                         op->Title() +
                             ": no memory to stand in for a rank that has "
                             "joined"));
    return false;
  }
  FollowUnnamed(*name);
  ++stand_ins_;
  Enqueue(*name, std::move(op));
  return true;
}

// Tells the executor once that no operation which this rank submitted itself is
// pending. When all ranks have done so, there is nothing left to stand in for.
void RankCore::SettleJoin() {
  if (settled_ || outstanding_.load() > stand_ins_ + 1) return;
  settled_ = true;
  auto m = session::Make<session::JoinRequest>();
  m.number = joins_ + 1;
  m.settled = 1;
  shell_->Send(&m, sizeof(m));
}

void RankCore::EndJoin(const Status& status) {
  const std::shared_ptr<Operation> op = std::exchange(join_, nullptr);
  if (join_reply_) op->answer = join_reply_->last_rank;
  ++joins_;
  expected_.fetch_sub(1);
  has_controls_.store(!asked_.empty());
  joining_.store(false);
  me_.aside.store(0, std::memory_order_seq_cst);
  board_->header().aside_count.fetch_sub(1, std::memory_order_seq_cst);
  End(*op, status.ok() ? Status() : op->Explain(status));
}

void RankCore::FailControls(const Status& status) {
  for (const auto& [number, op] : std::exchange(asked_, {})) {
    expected_.fetch_sub(1);
    End(*op, op->Explain(status));
  }
  if (join_ != nullptr) {
    join_reply_.reset();
    EndJoin(status);
  }
  has_controls_.store(false);
}

}  // namespace maypole
