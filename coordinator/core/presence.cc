#include "coordinator/core/presence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"

namespace maypole::coordinator {
namespace {

std::string KeyOf(const proto::Identity& identity) {
  return absl::StrCat(identity.process_set(), "/", identity.kind(), "/",
                      identity.name());
}

}  // namespace

OperationTable::OperationTable(const std::vector<Member>* members,
                               const ProcessSets* sets)
    : members_(*members), sets_(*sets), lateness_(members->size()) {}

const Operation* OperationTable::Find(const proto::Identity& identity) const {
  auto it = ids_.find(KeyOf(identity));
  return it == ids_.end() ? nullptr : &operations_[it->second - 1];
}

absl::StatusOr<Operation*> OperationTable::Resolve(
    const proto::PresentOperation& message) {
  if (message.id() != 0) {
    if (message.id() > operations_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown operation id ", message.id()));
    }
    return &operations_[message.id() - 1];
  }
  absl::Status status = CheckIdentity(message.identity());
  if (!status.ok()) return status;
  const RankSet* set = sets_.FindEver(message.identity().process_set());
  if (set == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown process set ", message.identity().process_set()));
  }
  std::string key = KeyOf(message.identity());
  auto it = ids_.find(key);
  if (it != ids_.end()) return &operations_[it->second - 1];
  if (operations_.size() >= kMaxOperations) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job has used ", kMaxOperations,
        " names of operations, no more are allowed; use the same names again"));
  }
  Operation& op = operations_.emplace_back();
  op.id = operations_.size();
  op.identity = message.identity();
  op.set = set;
  ids_.emplace(std::move(key), op.id);
  return &op;
}

absl::Status OperationTable::Note(Time now, size_t node,
                                  const proto::PresentOperation& message,
                                  Operation* op) {
  if (message.urgency() > static_cast<uint32_t>(Urgency::kImmediate)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op->Text(), ": unknown urgency ", message.urgency()));
  }
  if (op->present > 0 && op->nodes[node].present) {
    return absl::InvalidArgumentError(absl::StrCat(
        op->Text(), " was reported twice, as generations ",
        op->nodes[node].generation, " and ", message.generation()));
  }
  absl::StatusOr<NodePresence> read =
      ReadPresence(node, *op->set, op->identity, message);
  if (!read.ok()) return read.status();
  if (op->present == 0) {
    op->nodes.resize(members_.size());
    op->first_present = now;
    ++pending_;
  }
  op->nodes[node] = *std::move(read);
  ++op->present;
  NoteLateness(now, node, *op);
  if (node == op->set->nodes.front()) op->order = ++last_order_;
  op->urgency = std::max(op->urgency, static_cast<Urgency>(message.urgency()));
  return absl::OkStatus();
}

// `node` has just reported it.
void OperationTable::NoteLateness(Time now, size_t node, const Operation& op) {
  if (op.present > 1) return lateness_.Came(now, node);
  for (const size_t i : op.set->nodes) {
    if (i != node) lateness_.Await(now, i);
  }
}

absl::StatusOr<Operation*> OperationTable::Resolve(
    const proto::UrgentOperation& message) {
  if (message.id() > operations_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown operation id ", message.id()));
  }
  if (message.id() != 0) return &operations_[message.id() - 1];
  auto it = ids_.find(KeyOf(message.identity()));
  return it == ids_.end() ? nullptr : &operations_[it->second - 1];
}

bool OperationTable::NoteUrgent(size_t node, uint32_t generation,
                                Operation* op) {
  if (op->present == 0 || !op->nodes[node].present ||
      op->nodes[node].generation != generation) {
    return false;
  }
  op->urgency = std::max(op->urgency, Urgency::kAwaited);
  return true;
}

absl::StatusOr<ReadyOperation> OperationTable::Validate(
    const Operation& op) const {
  std::string text = DescribeDisagreement(op);
  if (!text.empty()) return absl::FailedPreconditionError(text);
  const NodePresence& first = op.nodes[op.set->nodes.front()];
  ReadyOperation ready;
  ready.id = op.id;
  ready.generation = first.generation;
  ready.signature = first.groups[0].signature;
  ready.signature.aside = 0;
  ready.bytes = ready.signature.Bytes();
  ready.first_present = op.first_present;
  ready.order = op.order;
  ready.urgency = op.urgency;
  const Signature& s = ready.signature;
  if (s.kind == Kind::kBroadcast &&
      !op.set->Has(static_cast<uint32_t>(s.root))) {
    return absl::FailedPreconditionError(
        absl::StrCat(op.Text(), ": root rank ", s.root, " is not in ",
                     op.set->Text(), "; give the global rank of a member"));
  }
  if (s.kind != Kind::kAllgather && s.kind != Kind::kAlltoall) return ready;
  return Gathered(op, std::move(ready));
}

std::string OperationTable::DescribeDisagreement(const Operation& op) const {
  const NodePresence& first = op.nodes[op.set->nodes.front()];
  bool agree = true;
  bool aside = false;
  const size_t* other = nullptr;  // a node with another generation
  for (const size_t& i : op.set->nodes) {
    const NodePresence& p = op.nodes[i];
    for (const auto& g : p.groups) {
      agree = agree && Agree(g.signature, first.groups[0].signature);
      aside = aside || g.signature.aside != 0;
    }
    if (p.generation != first.generation) other = &i;
  }
  // Where some stand aside, the root of a broadcast may be one of them.
  if (!agree || aside) {
    std::vector<std::pair<int, Signature>> submitted;
    for (const NodePresence& p : op.nodes) {
      for (const auto& g : p.groups) {
        for (uint32_t rank : g.ranks) submitted.emplace_back(rank, g.signature);
      }
    }
    std::string text = DescribeMismatch(op.identity.name(), submitted);
    if (!text.empty()) return text;
  }
  if (other == nullptr) return "";
  return absl::StrCat(op.Text(), ": mismatched counts: node ",
                      members_[op.set->nodes.front()].node,
                      " submits it for the ", first.generation, ". time, node ",
                      members_[*other].node, " for the ",
                      op.nodes[*other].generation,
                      ".; every rank must submit it equally often");
}

absl::StatusOr<ReadyOperation> OperationTable::Gathered(
    const Operation& op, ReadyOperation ready) const {
  const RankSet& set = *op.set;
  const size_t n = set.ranks.size();
  const bool splits = ready.signature.kind == Kind::kAlltoall;
  if (splits && n > kMaxAlltoallRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.Text(), ": ", set.Text(), " has more than ", kMaxAlltoallRanks,
        " ranks, which is the limit of an alltoall over several nodes; use "
        "smaller process sets"));
  }
  std::vector<int64_t> dims(set.ranks.back() + 1, 0);  // by global rank
  if (splits) ready.splits.assign(n * n, 0);
  uint64_t rows = 0;
  for (const size_t i : set.nodes) {
    const NodePresence& p = op.nodes[i];
    for (size_t local = 0; local < set.by_node[i].size(); ++local) {
      const uint32_t rank = set.by_node[i][local];
      dims[rank] = p.first_dims[local];
      rows += static_cast<uint64_t>(dims[rank]);
      if (!splits) continue;
      const size_t place =
          std::lower_bound(set.ranks.begin(), set.ranks.end(), rank) -
          set.ranks.begin();
      std::copy_n(p.splits.begin() + local * n, n,
                  ready.splits.begin() + place * n);
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

void OperationTable::Settle(Operation* op) {
  if (op->present == 0) return;
  for (const NodePresence& p : op->nodes) {
    if (p.present) op->settled = std::max(op->settled, p.generation);
  }
  for (const size_t i : op->set->nodes) {
    if (!op->nodes[i].present) lateness_.Drop(i);
  }
  op->present = 0;
  op->urgency = Urgency::kNone;
  op->nodes.clear();
  op->nodes.shrink_to_fit();
  --pending_;
}

std::vector<Operation*> OperationTable::Pending() {
  std::vector<Operation*> out;
  for (Operation& op : operations_) {
    if (op.present > 0) out.push_back(&op);
  }
  return out;
}

std::vector<const Operation*> OperationTable::Pending() const {
  std::vector<const Operation*> out;
  for (const Operation& op : operations_) {
    if (op.present > 0) out.push_back(&op);
  }
  return out;
}

}  // namespace maypole::coordinator
