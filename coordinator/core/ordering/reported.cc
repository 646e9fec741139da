#include "coordinator/core/ordering/reported.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/wire/signature_message.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

constexpr int64_t kMaxDimension = static_cast<int64_t>(kMaxTensorBytes);

bool AreDimensions(const std::vector<int64_t>& values) {
  return std::ranges::all_of(
      values, [](int64_t v) { return v >= 0 && v <= kMaxDimension; });
}

absl::StatusOr<Signature> CheckedSignature(const proto::LocalSignature& m,
                                           const proto::Identity& identity) {
  const Signature s = ReadSignature(m, identity.process_set());
  const Status status = CheckSignature(identity.name(), s);
  if (!status.ok()) return InvalidArgument(status.message());
  if (m.kind() != identity.kind()) {
    return InvalidArgument(OperationText(identity),
                           ": a signature of another kind");
  }
  return s;
}

// Checks that each rank of the set on the node is in exactly one group.
absl::Status CheckRanks(const std::vector<uint32_t>& expected,
                        const NodePresence::Details& p) {
  std::set<uint32_t> seen;
  for (const NodePresence::Group& group : p.groups) {
    for (uint32_t rank : group.ranks) {
      const bool known = std::ranges::find(expected, rank) != expected.end();
      if (known && seen.insert(rank).second) continue;
      return InvalidArgument(
          "a signature of rank ", rank,
          ", which is not a rank of the process set on the node, or has "
          "another signature already");
    }
  }
  if (seen.size() == expected.size() && !seen.empty()) {
    return absl::OkStatus();
  }
  return InvalidArgument("signatures of ", seen.size(),
                         " ranks, the process set has ", expected.size(),
                         " on the node");
}

absl::Status ReadFirstDims(size_t locals, const proto::PresentOperation& m,
                           NodePresence::Details* p) {
  p->first_dims.assign(m.first_dims().begin(), m.first_dims().end());
  if (p->first_dims.size() == locals && AreDimensions(p->first_dims)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "there must be one first dimension, from 0 to 2^44, for each rank of the "
      "process set on the node");
}

absl::Status ReadSplits(size_t ranks, const proto::PresentOperation& m,
                        NodePresence::Details* p) {
  p->splits.assign(m.splits().begin(), m.splits().end());
  const size_t locals = p->first_dims.size();
  if (p->splits.size() != locals * ranks || !AreDimensions(p->splits)) {
    return InvalidArgument(
        p->splits.size(), " splits for ", locals, " ranks on the node and ",
        ranks, " ranks of the process set, or not all from 0 to 2^44");
  }
  for (size_t i = 0; i < locals; ++i) {
    uint64_t sum = 0;  // at most 2^10 x 2^44
    for (size_t j = 0; j < ranks; ++j) sum += p->splits[i * ranks + j];
    if (sum == static_cast<uint64_t>(p->first_dims[i])) continue;
    return InvalidArgument("splits with a sum of ", sum, " for ",
                           p->first_dims[i], " rows");
  }
  return absl::OkStatus();
}

absl::Status ReadGpus(size_t locals, Kind kind,
                      const proto::PresentOperation& m,
                      NodePresence::Details* p) {
  p->gpus.assign(m.gpus().begin(), m.gpus().end());
  p->gpu_rooms.assign(m.gpu_rooms().begin(), m.gpu_rooms().end());
  p->ranks_call_nccl = m.ranks_call_nccl();
  const size_t different =
      std::set<uint32_t>(p->gpus.begin(), p->gpus.end()).size();
  if (p->ranks_call_nccl && (different == 0 || different != p->gpus.size())) {
    return InvalidArgument(
        "ranks that call NCCL themselves must have a GPU each");
  }
  const size_t rooms = Gathers(kind) ? p->gpus.size() : 0;
  if ((p->gpus.empty() || p->gpus.size() == locals) &&
      p->gpu_rooms.size() == rooms &&
      std::ranges::all_of(p->gpus,
                          [](uint32_t gpu) { return gpu < kMaxGpus; }) &&
      std::ranges::all_of(p->gpu_rooms, [](uint64_t room) {
        return room <= kMaxGpuMemoryBytes;
      })) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "there must be no GPU or one, below ", kMaxGpus,
      ", for each rank of the process set on the node; and, if results are "
      "gathered, as many rooms of at most ",
      kMaxGpuMemoryBytes, " bytes");
}

// True if the message contains only one signature, of all these ranks.
bool IsPlain(const std::vector<uint32_t>& expected, Kind kind,
             const proto::PresentOperation& m) {
  if (m.signatures_size() != 1 || Gathers(kind) || m.gpus_size() != 0 ||
      m.gpu_rooms_size() != 0 || m.ranks_call_nccl() ||
      m.signatures(0).aside()) {
    return false;
  }
  const auto& ranks = m.signatures(0).ranks();
  return !expected.empty() && std::ranges::equal(ranks, expected);
}

// True if the message has more than `as_before` allows.
bool SaysMore(const proto::PresentOperation& m) {
  return m.signatures_size() + m.first_dims_size() + m.splits_size() +
                 m.gpus_size() + m.gpu_rooms_size() >
             0 ||
         m.ranks_call_nccl();
}

bool Same(const Signature& a, const Signature& b) {
  // All bytes belong to a field; scale factors are compared by their bits.
  static_assert(std::is_trivially_copyable_v<Signature> &&
                sizeof(Signature) == 8 + 2 * 4 + 2 * 8 + kMaxDims * 8);
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

}  // namespace

std::string OperationText(const proto::Identity& identity) {
  std::string out =
      absl::StrCat(std::string(Name(static_cast<Kind>(identity.kind()))), " '",
                   identity.name(), "'");
  if (identity.process_set() == 0) return out;
  return absl::StrCat(out, " of process set ", identity.process_set());
}

absl::Status CheckIdentity(const proto::Identity& identity) {
  if (identity.kind() >= kKinds ||
      identity.kind() == static_cast<uint32_t>(Kind::kJoin)) {
    return InvalidArgument("unknown kind of operation ", identity.kind());
  }
  if (identity.name().size() > kMaxNameBytes) {
    return InvalidArgument("an operation's name of ", identity.name().size(),
                           " bytes; ", kMaxNameBytes, " are allowed");
  }
  return absl::OkStatus();
}

absl::StatusOr<const RankSet*> SetOf(const proto::Identity& identity,
                                     const ProcessSets& sets) {
  if (absl::Status s = CheckIdentity(identity); !s.ok()) return s;
  const RankSet* set = sets.FindEver(identity.process_set());
  if (set != nullptr) return set;
  return InvalidArgument("unknown process set ", identity.process_set());
}

absl::StatusOr<NodePresence> ReadPresence(
    size_t node, const RankSet& set, const proto::Identity& identity,
    const proto::PresentOperation& message,
    const std::optional<Signature>& last, std::optional<Signature>* common) {
  auto bad = [&identity](absl::string_view what) {
    return InvalidArgument(OperationText(identity), ": ", what);
  };
  NodePresence p;
  p.present = true;
  p.generation = message.generation();
  if (message.signatures_size() > kMaxLocalRanks) {
    return bad(
        absl::StrCat(message.signatures_size(), " signatures of one node"));
  }
  const std::vector<uint32_t>& expected = set.by_node[node];
  const Kind kind = static_cast<Kind>(identity.kind());
  if (message.inputs_sent() && !(message.as_before() && Reduces(kind))) {
    return bad(
        "its inputs were sent; that needs a reduction that is reported as "
        "before");
  }
  p.inputs_sent = message.inputs_sent();
  if (message.as_before()) {
    if (!last || expected.empty() || Gathers(kind) || SaysMore(message)) {
      return bad(
          "it is reported as before; that needs a run under this id, ranks of "
          "the process set on the node, an operation without sizes by rank, "
          "and nothing else in the report");
    }
    if (!*common) *common = last;
    if (!Same(**common, *last)) {
      auto details = std::make_unique<NodePresence::Details>();
      details->groups.push_back({expected, *last});
      p.details = std::move(details);
    }
    return p;
  }
  const bool plain = IsPlain(expected, kind, message);
  // The common signature was checked when it became the common one.
  if (plain && *common &&
      Same(**common,
           ReadSignature(message.signatures(0), identity.process_set()))) {
    return p;
  }
  auto details = std::make_unique<NodePresence::Details>();
  for (const proto::LocalSignature& local : message.signatures()) {
    absl::StatusOr<Signature> s = CheckedSignature(local, identity);
    if (!s.ok()) return s.status();
    details->groups.push_back(
        {{local.ranks().begin(), local.ranks().end()}, *s});
  }
  if (plain && !*common) {
    *common = details->groups.front().signature;
    return p;
  }
  absl::Status status = CheckRanks(expected, *details);
  if (status.ok() && Gathers(kind)) {
    status = ReadFirstDims(expected.size(), message, details.get());
  }
  // An alltoall of too many ranks fails anyway.
  if (status.ok() && kind == Kind::kAlltoall &&
      set.ranks.size() <= kMaxAlltoallRanks) {
    status = ReadSplits(set.ranks.size(), message, details.get());
  }
  if (status.ok()) {
    status = ReadGpus(expected.size(), kind, message, details.get());
  }
  if (!status.ok()) return bad(status.message());
  p.details = std::move(details);
  return p;
}

}  // namespace maypole::coordinator
