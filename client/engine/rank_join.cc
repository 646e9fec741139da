#include "client/engine/rank_join.h"

#include <sys/mman.h>

#include <cstddef>
#include <string>

#include "common/reduce/reduce.h"

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

void RankJoin::Begin(const std::shared_ptr<Operation>& operation) {
  operation_ = operation;
  joining_.store(true);
  reported_idle_ = false;
  reply_.reset();
  // Published on the board before StandIn() reads it: a rank that arrives from
  // now on wakes this rank, and StandIn() finds earlier arrivals.
  board_->header().aside_count.fetch_add(1, std::memory_order_seq_cst);
  me_.aside.store(joins_ + 1, std::memory_order_seq_cst);
  auto m = session::Make<session::JoinRequest>();
  m.number = joins_ + 1;
  requests_->Send(m);
}

void RankJoin::OnReply(const session::JoinReply& reply) {
  if (pending() && reply.number == joins_ + 1) reply_ = reply;
}

std::pair<std::shared_ptr<Operation>, Status> RankJoin::End() {
  operation_->answer = reply_->last_rank;
  return Fail(Status(static_cast<Code>(reply_->code), reply_->text));
}

std::pair<std::shared_ptr<Operation>, Status> RankJoin::Fail(
    const Status& status) {
  const std::shared_ptr<Operation> op = std::exchange(operation_, nullptr);
  ++joins_;
  requests_->OnAnswered();
  joining_.store(false);
  me_.aside.store(0, std::memory_order_seq_cst);
  board_->header().aside_count.fetch_sub(1, std::memory_order_seq_cst);
  return {op, status.ok() ? Status() : op->Explain(status)};
}

// Finds a signature that a member has submitted, or the executor wants, after
// generation `beyond` of the slot; ignores operations that were submitted after
// this join.
bool RankJoin::FindSubmitted(uint32_t slot, uint32_t beyond,
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

// A rank may use a slot only after it has requested it: the executor recalls a
// slot only from ranks that have, before it allots it to another name.
void RankJoin::RequestSlot(uint32_t slot) {
  uint32_t set = 0;
  Kind kind = Kind::kBarrier;
  std::string name;
  if (board_->ReadIdentity(slot, &set, &kind, &name) &&
      sets_->Find(set) != nullptr) {
    names_->FindOrAdd(set, kind, name);
  }
}

std::shared_ptr<Operation> RankJoin::StandIn(uint32_t slot) {
  if (board_->slot(slot).identity.load(std::memory_order_acquire) == 0 ||
      (board_->Members(slot) >> local_rank_ & 1) == 0) {
    return nullptr;
  }
  const RankName* const name = names_->At(slot);
  const uint32_t reached =
      name != nullptr ? name->generation
                      : board_->arrival(slot, local_rank_)
                            .generation.load(std::memory_order_relaxed);
  Signature s;
  if (!FindSubmitted(slot, reached, &s)) return nullptr;
  if (name == nullptr) RequestSlot(slot);
  if (name == nullptr || name->busy()) return nullptr;
  auto op = std::make_shared<Operation>();
  op->name = name->name;
  op->stands_in = true;
  op->signature = s;
  op->signature.aside = 1;
  op->signature.joins = static_cast<uint8_t>(joins_);
  op->set = sets_->Find(name->process_set);
  if (Gathers(s.kind)) op->signature.shape[0] = 0;
  if (s.kind == Kind::kAlltoall) op->splits.assign(op->set->ranks.size(), 0);
  const bool is_root = s.kind == Kind::kBroadcast &&
                       s.root == board_->config().global_rank[local_rank_];
  if ((Reduces(s.kind) || is_root) && !MakeNeutral(*op)) {
    shell_->GiveUp(Status(Code::kResourceExhausted,
                          op->Title() +
                              ": no memory to stand in for a rank that has "
                              "joined"));
    return nullptr;
  }
  names_->CountStandIn(*name);
  ++stand_ins_;
  return op;
}

void RankJoin::ReportIdle(uint32_t outstanding) {
  if (reported_idle_ || outstanding > stand_ins_ + 1) return;
  reported_idle_ = true;
  auto m = session::Make<session::JoinRequest>();
  m.number = joins_ + 1;
  m.settled = 1;
  shell_->Send(&m, sizeof(m));
}

}  // namespace maypole
