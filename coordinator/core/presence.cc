#include "coordinator/core/presence.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

std::string KeyOf(const proto::Identity& identity) {
  return absl::StrCat(identity.process_set(), "/", identity.kind(), "/",
                      identity.name());
}

absl::Status CheckIdentity(const proto::Identity& identity) {
  if (identity.kind() >= kKinds) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown kind of operation ", identity.kind()));
  }
  if (identity.process_set() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown process set ", identity.process_set()));
  }
  if (identity.name().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an operation's name of ", identity.name().size(),
                     " bytes; ", kMaxNameBytes, " are allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Signature> ReadSignature(const proto::LocalSignature& m,
                                        const Operation& op) {
  if (m.kind() != op.identity.kind() || m.dtype() >= kDTypes ||
      m.op() >= kOps || m.device() > static_cast<uint32_t>(Device::kGpu) ||
      m.shape_size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.Text(), ": a signature with unknown numbers"));
  }
  Signature s;
  s.kind = static_cast<Kind>(m.kind());
  s.dtype = static_cast<DType>(m.dtype());
  s.op = static_cast<Op>(m.op());
  s.device = static_cast<Device>(m.device());
  s.process_set = op.identity.process_set();
  s.root = m.root();
  s.prescale = m.prescale();
  s.postscale = m.postscale();
  s.dims = static_cast<uint8_t>(m.shape_size());
  std::copy(m.shape().begin(), m.shape().end(), s.shape);
  const Status status = CheckSignature(op.identity.name(), s);
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  return s;
}

}  // namespace

std::string Operation::Text() const {
  return absl::StrCat(std::string(Name(static_cast<Kind>(identity.kind()))),
                      " '", identity.name(), "'");
}

OperationTable::OperationTable(const std::vector<Member>* members,
                               uint32_t size)
    : members_(*members), size_(size) {}

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
  absl::StatusOr<NodePresence> read = Read(node, *op, message);
  if (!read.ok()) return read.status();
  if (op->present == 0) {
    op->nodes.resize(members_.size());
    op->first_present = now;
    ++pending_;
  }
  op->nodes[node] = *std::move(read);
  ++op->present;
  if (node == 0) op->order = ++last_order_;
  op->urgency = std::max(op->urgency, static_cast<Urgency>(message.urgency()));
  return absl::OkStatus();
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

absl::StatusOr<NodePresence> OperationTable::Read(
    size_t node, const Operation& op, const proto::PresentOperation& m) const {
  NodePresence p;
  p.present = true;
  p.generation = m.generation();
  if (m.signatures_size() > kMaxLocalRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.Text(), ": ", m.signatures_size(), " signatures of one node"));
  }
  for (const proto::LocalSignature& local : m.signatures()) {
    absl::StatusOr<Signature> s = ReadSignature(local, op);
    if (!s.ok()) return s.status();
    p.groups.push_back({{local.ranks().begin(), local.ranks().end()}, *s});
  }
  absl::Status ranks = CheckRanks(node, p);
  if (!ranks.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.Text(), ": ", ranks.message()));
  }
  if (p.groups.front().signature.kind != Kind::kAllgather) return p;
  p.first_dims.assign(m.first_dims().begin(), m.first_dims().end());
  const bool sound =
      p.first_dims.size() == members_[node].ranks.size() &&
      std::all_of(p.first_dims.begin(), p.first_dims.end(), [](int64_t d) {
        return d >= 0 && d <= static_cast<int64_t>(kMaxTensorBytes);
      });
  if (!sound) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.Text(),
                     ": first dimensions that are not one for each rank of the "
                     "node, from 0 to 2^44"));
  }
  return p;
}

absl::Status OperationTable::CheckRanks(size_t node,
                                        const NodePresence& p) const {
  const Member& member = members_[node];
  std::set<uint32_t> seen;
  for (const NodePresence::Group& group : p.groups) {
    for (uint32_t rank : group.ranks) {
      if (!member.HasRank(rank) || !seen.insert(rank).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a signature of rank ", rank, ", which is not a rank of node ",
            member.node, " or has another signature already"));
      }
    }
  }
  if (seen.size() != member.ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("signatures of ", seen.size(), " ranks, node ",
                     member.node, " has ", member.ranks.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReadyOperation> OperationTable::Validate(
    const Operation& op) const {
  std::string text = DescribeDisagreement(op);
  if (!text.empty()) return absl::FailedPreconditionError(text);
  const Signature& s = op.nodes[0].groups[0].signature;
  if (s.kind == Kind::kBroadcast && static_cast<uint32_t>(s.root) >= size_) {
    return absl::FailedPreconditionError(absl::StrCat(
        op.Text(), ": root rank ", s.root, " is not in the job of ", size_,
        " ranks (0 to ", size_ - 1, ")"));
  }
  ReadyOperation ready;
  ready.id = op.id;
  ready.generation = op.nodes[0].generation;
  ready.signature = s;
  ready.bytes = s.Bytes();
  ready.first_present = op.first_present;
  ready.order = op.order;
  ready.urgency = op.urgency;
  if (s.kind == Kind::kAllgather) return Gathered(op, std::move(ready));
  return ready;
}

std::string OperationTable::DescribeDisagreement(const Operation& op) const {
  const Signature& first = op.nodes[0].groups[0].signature;
  bool agree = true;
  size_t other = 0;  // a node with another generation
  for (size_t i = 0; i < op.nodes.size(); ++i) {
    const NodePresence& p = op.nodes[i];
    for (const auto& g : p.groups) agree = agree && Agree(g.signature, first);
    if (p.generation != op.nodes[0].generation) other = i;
  }
  if (!agree) {
    std::vector<std::pair<int, Signature>> submitted;
    for (const NodePresence& p : op.nodes) {
      for (const auto& g : p.groups) {
        for (uint32_t rank : g.ranks) submitted.emplace_back(rank, g.signature);
      }
    }
    return DescribeMismatch(op.identity.name(), submitted);
  }
  if (other == 0) return "";
  return absl::StrCat(op.Text(), ": mismatched counts: node ", members_[0].node,
                      " submits it for the ", op.nodes[0].generation,
                      ". time, node ", members_[other].node, " for the ",
                      op.nodes[other].generation,
                      ".; every rank must submit it equally often");
}

absl::StatusOr<ReadyOperation> OperationTable::Gathered(
    const Operation& op, ReadyOperation ready) const {
  ready.first_dims.assign(size_, 0);
  uint64_t rows = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    for (size_t local = 0; local < members_[i].ranks.size(); ++local) {
      const int64_t dim = op.nodes[i].first_dims[local];
      ready.first_dims[members_[i].ranks[local]] = dim;
      rows += static_cast<uint64_t>(dim);
    }
  }
  const uint64_t row_bytes = ready.signature.RowBytes();
  if (row_bytes > 0 && rows > kMaxTensorBytes / row_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(op.Text(), ": the gathered tensor would have ", rows,
                     " rows of ", row_bytes, " bytes; 2^44 bytes are allowed"));
  }
  ready.bytes = rows * row_bytes;
  return ready;
}

void OperationTable::Settle(Operation* op) {
  if (op->present == 0) return;
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
