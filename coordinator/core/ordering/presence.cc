#include "coordinator/core/ordering/presence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

std::string KeyOf(const proto::Identity& identity) {
  return IdentityKey(identity.process_set(), identity.kind(), identity.name());
}

}  // namespace

std::vector<NodePresence::Group> NegotiatedOperation::GroupsOf(
    size_t node) const {
  const NodePresence& p = nodes[node];
  if (!p.present) return {};
  if (p.details != nullptr) return p.details->groups;
  return {{set->by_node[node], *common}};
}

OperationTable::OperationTable(const std::vector<NodeMember>* members,
                               const ProcessSets* sets, size_t limit)
    : members_(*members),
      sets_(*sets),
      limit_(limit),
      straggler_time_(members->size()) {}

const NegotiatedOperation* OperationTable::Find(
    const proto::Identity& identity) const {
  auto it = ids_.find(KeyOf(identity));
  return it == ids_.end() ? nullptr : &operations_[PlaceOf(it->second)];
}

absl::StatusOr<NegotiatedOperation*> OperationTable::FindGiven(uint32_t id) {
  const size_t place = PlaceOf(id);
  if (place >= operations_.size() || id > operations_[place].id) {
    return InvalidArgument("unknown operation id ", id);
  }
  NegotiatedOperation* op = &operations_[place];
  return id == op->id && op->set != nullptr ? op : nullptr;
}

absl::StatusOr<NegotiatedOperation*> OperationTable::Resolve(
    const proto::PresentOperation& message) {
  if (message.id() != 0) return FindGiven(message.id());
  const absl::StatusOr<const RankSet*> set = SetOf(message.identity(), sets_);
  if (!set.ok()) return set.status();
  std::string key = KeyOf(message.identity());
  auto it = ids_.find(key);
  if (it != ids_.end()) return &operations_[PlaceOf(it->second)];
  NegotiatedOperation* const op = NewPlace();
  if (op == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        limit_,
        " operations of the job are pending at the same time, no more are "
        "allowed; wait for some before you submit others"));
  }
  op->identity = message.identity();
  op->set = *set;
  ids_.emplace(std::move(key), op->id);
  return op;
}

// Returns an entry with a new id; null if all operations are pending.
NegotiatedOperation* OperationTable::NewPlace() {
  if (free_.empty() && operations_.size() < limit_) {
    NegotiatedOperation& op = operations_.emplace_back();
    op.id = operations_.size();
    return &op;
  }
  if (free_.empty()) ForgetOldest();
  if (free_.empty()) return nullptr;
  NegotiatedOperation* const op = free_.back();
  free_.pop_back();
  uint32_t id = op->id + kMaxOperations;
  if (id == 0) id += kMaxOperations;
  *op = NegotiatedOperation();
  op->id = id;
  return op;
}

// Forgets an eighth of the table, so that not every new name needs this.
void OperationTable::ForgetOldest() {
  std::vector<NegotiatedOperation*> idle;
  for (NegotiatedOperation& op : operations_) {
    if (op.set != nullptr && op.present == 0 && !op.scheduled) {
      idle.push_back(&op);
    }
  }
  const size_t count = std::min(idle.size(), std::max<size_t>(1, limit_ / 8));
  std::ranges::partial_sort(idle, idle.begin() + static_cast<ptrdiff_t>(count),
                            {}, &NegotiatedOperation::used);
  for (size_t i = 0; i < count; ++i) Forget(idle[i]);
}

void OperationTable::Forget(NegotiatedOperation* op) {
  ids_.erase(KeyOf(op->identity));
  forgotten_.push_back({op->id, op->set});
  op->set = nullptr;
  free_.push_back(op);
}

absl::Status OperationTable::Retire(size_t node,
                                    const proto::RetireNames& message) {
  for (const uint32_t id : message.ids()) {
    absl::StatusOr<NegotiatedOperation*> op = FindGiven(id);
    if (!op.ok()) return op.status();
    if (*op == nullptr || (*op)->present > 0 || (*op)->scheduled) continue;
    if ((*op)->set->by_node[node].empty()) {
      return InvalidArgument((*op)->Text(),
                             " was retired by a node without ranks of ",
                             (*op)->set->Text());
    }
    Forget(*op);
  }
  return absl::OkStatus();
}

absl::Status OperationTable::Note(Time now, size_t node,
                                  const proto::PresentOperation& message,
                                  NegotiatedOperation* op) {
  if (message.urgency() > static_cast<uint32_t>(Urgency::kImmediate)) {
    return InvalidArgument(op->Text(), ": unknown urgency ", message.urgency());
  }
  if (op->PresentOn(node)) {
    return InvalidArgument(op->Text(), " was reported twice, as generations ",
                           op->nodes[node].generation, " and ",
                           message.generation());
  }
  absl::StatusOr<NodePresence> read = ReadPresence(
      node, *op->set, op->identity, message, op->last, &op->common);
  if (!read.ok()) return read.status();
  if (op->present == 0) {
    op->nodes.resize(members_.size());
    op->first_present = now;
    ++pending_;
  }
  op->nodes[node] = *std::move(read);
  ++op->present;
  NoteStragglerTime(now, node, *op);
  if (node == op->set->nodes.front()) op->order = ++last_order_;
  op->urgency = std::max(op->urgency, static_cast<Urgency>(message.urgency()));
  return absl::OkStatus();
}

// Called when `node` has just reported the operation.
void OperationTable::NoteStragglerTime(Time now, size_t node,
                                       const NegotiatedOperation& op) {
  if (op.present > 1) return straggler_time_.Came(now, node);
  for (const size_t i : op.set->nodes) {
    if (i != node) straggler_time_.Await(now, i);
  }
}

absl::StatusOr<NegotiatedOperation*> OperationTable::Resolve(
    const proto::UrgentOperation& message) {
  if (message.id() != 0) return FindGiven(message.id());
  auto it = ids_.find(KeyOf(message.identity()));
  return it == ids_.end() ? nullptr : &operations_[PlaceOf(it->second)];
}

bool OperationTable::NoteUrgent(size_t node, uint32_t generation,
                                NegotiatedOperation* op) {
  if (!op->PresentOn(node) || op->nodes[node].generation != generation) {
    return false;
  }
  op->urgency = std::max(op->urgency, Urgency::kAwaited);
  return true;
}

absl::StatusOr<ReadyOperation> OperationTable::Validate(
    const NegotiatedOperation& op) const {
  std::string text = DescribeDisagreement(op);
  if (!text.empty()) return absl::FailedPreconditionError(text);
  const NodePresence& first = op.nodes[op.set->nodes.front()];
  ReadyOperation ready;
  ready.id = op.id;
  ready.generation = first.generation;
  ready.signature = first.details == nullptr
                        ? *op.common
                        : first.details->groups[0].signature;
  ready.signature.aside = 0;
  ready.bytes = ready.signature.Bytes();
  ready.first_present = op.first_present;
  ready.order = op.order;
  ready.urgency = op.urgency;
  ready.inputs_sent = std::ranges::all_of(
      op.set->nodes, [&op](size_t i) { return op.nodes[i].inputs_sent; });
  const Signature& s = ready.signature;
  if (s.kind == Kind::kBroadcast &&
      !op.set->Has(static_cast<uint32_t>(s.root))) {
    return absl::FailedPreconditionError(
        absl::StrCat(op.Text(), ": root rank ", s.root, " is not in ",
                     op.set->Text(), "; give the global rank of a member"));
  }
  if (!Gathers(s.kind)) return ready;
  return Gathered(op, std::move(ready));
}

std::string OperationTable::DescribeDisagreement(
    const NegotiatedOperation& op) const {
  const NodePresence& first = op.nodes[op.set->nodes.front()];
  const Signature* some = op.common ? &*op.common : nullptr;
  bool agree = true;
  bool aside = false;
  const size_t* other = nullptr;  // a node with a different generation
  for (const size_t& i : op.set->nodes) {
    const NodePresence& p = op.nodes[i];
    if (p.generation != first.generation) other = &i;
    if (p.details == nullptr) continue;
    for (const auto& g : p.details->groups) {
      if (some == nullptr) some = &g.signature;
      agree = agree && Agree(g.signature, *some);
      aside = aside || g.signature.aside != 0;
    }
  }
  // If ranks stand aside, the root of a broadcast may be one of them.
  if (!agree || aside) {
    std::vector<std::pair<int, Signature>> submitted;
    for (const size_t i : op.set->nodes) {
      for (const auto& g : op.GroupsOf(i)) {
        for (uint32_t rank : g.ranks) submitted.emplace_back(rank, g.signature);
      }
    }
    std::string text = DescribeMismatch(op.identity.name(), submitted);
    if (!text.empty()) return text;
  }
  if (other == nullptr) return "";
  return absl::StrCat(op.Text(), ": mismatched counts: node ",
                      members_[op.set->nodes.front()].node,
                      " has submitted it ", first.generation, " times, node ",
                      members_[*other].node, " ", op.nodes[*other].generation,
                      "; every rank must submit it equally often");
}

absl::StatusOr<ReadyOperation> OperationTable::Gathered(
    const NegotiatedOperation& op, ReadyOperation ready) const {
  const RankSet& set = *op.set;
  const size_t n = set.ranks.size();
  const bool splits = ready.signature.kind == Kind::kAlltoall;
  if (splits && n > kMaxAlltoallRanks) {
    return InvalidArgument(
        op.Text(), ": ", set.Text(), " has more than ", kMaxAlltoallRanks,
        " ranks, which is the limit of an alltoall over several nodes; use "
        "smaller process sets");
  }
  std::vector<int64_t> dims(set.ranks.back() + 1, 0);  // by global rank
  if (splits) ready.splits.assign(n * n, 0);
  uint64_t rows = 0;
  for (const size_t i : set.nodes) {
    const NodePresence::Details& p = *op.nodes[i].details;
    for (size_t local = 0; local < set.by_node[i].size(); ++local) {
      const uint32_t rank = set.by_node[i][local];
      dims[rank] = p.first_dims[local];
      rows += static_cast<uint64_t>(dims[rank]);
      if (!splits) continue;
      std::copy_n(p.splits.begin() + local * n, n,
                  ready.splits.begin() + set.PositionOf(rank) * n);
    }
  }
  const uint64_t row_bytes = ready.signature.RowBytes();
  if (row_bytes > 0 && rows > kMaxTensorBytes / row_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        op.Text(), ": the ",
        splits ? "tensors of all ranks" : "gathered tensor", " would have ",
        rows, " rows of ", row_bytes, " bytes; 2^44 bytes are allowed"));
  }
  if (!splits) {
    dims.resize(sets_.Find(0)->ranks.size(), 0);
    ready.first_dims = std::move(dims);
  }
  ready.bytes = rows * row_bytes;
  return ready;
}

void OperationTable::Settle(NegotiatedOperation* op) {
  if (op->present == 0) return;
  for (const NodePresence& p : op->nodes) {
    if (p.present) op->settled = std::max(op->settled, p.generation);
  }
  Drop(op);
}

void OperationTable::Drop(NegotiatedOperation* op) {
  if (op->present == 0) return;
  if (!Complete(*op)) {
    for (const size_t i : op->set->nodes) {
      if (!op->nodes[i].present) straggler_time_.Drop(i);
    }
  }
  op->used = ++uses_;
  op->present = 0;
  op->urgency = Urgency::kNone;
  op->nodes.clear();
  op->nodes.shrink_to_fit();
  op->common.reset();
  --pending_;
}

std::vector<NegotiatedOperation*> OperationTable::Pending() {
  std::vector<NegotiatedOperation*> out;
  for (NegotiatedOperation& op : operations_) {
    if (op.present > 0) out.push_back(&op);
  }
  return out;
}

std::vector<const NegotiatedOperation*> OperationTable::Pending() const {
  std::vector<const NegotiatedOperation*> out;
  for (const NegotiatedOperation& op : operations_) {
    if (op.present > 0) out.push_back(&op);
  }
  return out;
}

}  // namespace maypole::coordinator
