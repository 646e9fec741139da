#include "worker/core/epoch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

std::vector<int> LocalRanks(const EpochInfo& info) {
  const auto& ranks = info.nodes[info.node_index].ranks();
  return {ranks.begin(), ranks.end()};
}

std::vector<uint32_t> NodeOfRank(const EpochInfo& info) {
  std::vector<uint32_t> out(static_cast<size_t>(info.size), 0);
  for (uint32_t i = 0; i < info.nodes.size(); ++i) {
    for (const uint32_t rank : info.nodes[i].ranks()) out[rank] = i;
  }
  return out;
}

// Well formed, without surrogates and what is longer than it need be: what
// protobuf takes for a string.
bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned first = byte(i), second = byte(i + 1);
    size_t more = 0;
    if (first >= 0x80) {
      if (first < 0xc2 || first > 0xf4) return false;
      more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
      if ((first == 0xe0 && second < 0xa0) ||
          (first == 0xed && second > 0x9f) ||
          (first == 0xf0 && second < 0x90) ||
          (first == 0xf4 && second > 0x8f)) {
        return false;
      }
    }
    for (size_t n = 1; n <= more; ++n) {
      if ((byte(i + n) & 0xc0) != 0x80) return false;
    }
    i += more + 1;
  }
  return true;
}

bool HasNames(uint32_t kind) {
  return kind < static_cast<uint32_t>(Kind::kJoin);
}

}  // namespace

std::string EpochInfo::NodeText(uint32_t node) const {
  return absl::StrCat("node ", nodes[node].node(), " (host ",
                      nodes[node].host(), ")");
}

absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks) {
  const auto bad = [&](const std::string& what) {
    return absl::InternalError(absl::StrCat("the coordinator's start of epoch ",
                                            start.epoch(),
                                            " is wrong: ", what));
  };
  EpochInfo info{start.epoch(),
                 static_cast<int>(start.size()),
                 start.node_index(),
                 {start.nodes().begin(), start.nodes().end()},
                 start.stall_check_ms()};
  if (start.size() < 1 || start.size() > static_cast<uint32_t>(kMaxRanks) ||
      info.node_index >= info.nodes.size()) {
    return bad("size or node index out of range");
  }
  std::set<uint32_t> seen;
  for (const proto::NodeInfo& node : info.nodes) {
    for (const uint32_t rank : node.ranks()) {
      if (rank >= start.size() || !seen.insert(rank).second) {
        return bad(absl::StrCat("rank ", rank, " is out of range or twice"));
      }
    }
  }
  if (seen.size() != start.size()) return bad("ranks are missing");
  if (LocalRanks(info) != local_ranks) {
    return bad("it gives this node other ranks than it has");
  }
  return info;
}

Epoch::Epoch(EpochInfo info, uint32_t slots, uint32_t records,
             int64_t frozen_timeout_ms, std::vector<Action>* actions)
    : info_(std::move(info)),
      actions_(actions),
      sets_(NodeOfRank(info_), LocalRanks(info_)),
      slots_(slots),
      presence_(info_.epoch),
      runs_(static_cast<uint32_t>(info_.size), info_.node_index, records),
      late_(info_.stall_check_ms),
      frozen_(static_cast<uint32_t>(info_.nodes[info_.node_index].ranks_size()),
              frozen_timeout_ms) {}

void Epoch::Send(proto::ExecutorMessage message) {
  actions_->push_back(SendToCoordinator{std::move(message)});
}

absl::StatusOr<uint32_t> Epoch::Allot(SharedSet set, Kind kind,
                                      const std::string& name) {
  bool is_new = false;
  absl::StatusOr<uint32_t> slot = slots_.Allot(set, kind, name, &is_new);
  if (slot.ok() && is_new) {
    actions_->push_back(AllotSlot{*slot, kind, name, std::move(set),
                                  slots_.Get(*slot)->splits_number});
  }
  return slot;
}

absl::StatusOr<uint32_t> Epoch::AllotFor(const Member& member,
                                         const session::SlotRequest& r,
                                         bool* negotiated) {
  const std::string name(r.name);
  if (name.empty()) {
    return absl::InvalidArgumentError("an operation needs a name");
  }
  // Others could not be told of it: a message with it would not be read, and
  // the session with the coordinator would end.
  if (!IsUtf8(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "operation '", absl::CHexEscape(name), "': a name must be UTF-8"));
  }
  if (!HasNames(r.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("operation '", name,
                                                   "': there is no collective ",
                                                   r.kind, " with names"));
  }
  const Kind kind = static_cast<Kind>(r.kind);
  const std::string what =
      absl::StrCat(std::string(Name(kind)), " '", name, "': ");
  const absl::StatusOr<SharedSet> set = sets_.Get(r.process_set);
  if (!set.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, set.status().message()));
  }
  if (!(*set)->Has(member.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "rank ", member.rank, " is not in process set ",
                     r.process_set, " (", (*set)->RanksText(), ")"));
  }
  *negotiated = (*set)->negotiated();
  if (kind == Kind::kAlltoall && *negotiated &&
      (*set)->size() > kMaxAlltoallRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, "over several nodes an alltoall may have ", kMaxAlltoallRanks,
        " ranks, process set ", r.process_set, " has ", (*set)->size()));
  }
  return Allot(*set, kind, name);
}

void Epoch::OnSlotRequest(const Member& member,
                          const session::SlotRequest& request) {
  auto reply = session::Make<session::SlotReply>();
  reply.request = request.request;
  bool negotiated = false;
  const absl::StatusOr<uint32_t> slot = AllotFor(member, request, &negotiated);
  if (slot.ok()) reply.slot = *slot;
  reply.negotiated = negotiated ? 1 : 0;
  reply.code = static_cast<uint32_t>(slot.status().code());
  session::SetText(reply.text, std::string(slot.status().message()));
  actions_->push_back(ReplyClient{member.client, reply});
}

absl::Status Epoch::OnNews(const SlotNews& news) {
  SlotEntry* entry = slots_.Get(news.slot);
  // Within the node ranks need nobody; else an old bit may be set once more.
  if (entry == nullptr || !entry->set->negotiated() ||
      news.generation < entry->reported) {
    return absl::OkStatus();
  }
  if (news.generation == entry->reported) {
    OnUrgent(news.urgency, entry);
    return absl::OkStatus();
  }
  const std::string node = info_.NodeText(info_.node_index);
  if (absl::Status s = CheckNews(news, *entry, node); !s.ok()) return s;
  // Ranks wait for the answer to what they have submitted, unless it fails
  // because somebody has left. The coordinator takes nothing twice.
  const bool left = std::any_of(left_.begin(), left_.end(), [&](int rank) {
    return entry->set->Has(rank);
  });
  if (entry->reported > entry->answered && !left) {
    return absl::InvalidArgumentError(absl::StrCat(
        entry->set->RanksText(), ": those of ", node, " have submitted ",
        std::string(Name(entry->kind)), " '", entry->name, "' for the ",
        news.generation, ". time before it had ended the ", entry->reported,
        ". time; has a process written over its shared memory?"));
  }
  entry->reported = news.generation;
  entry->signatures = news.signatures;
  entry->splits = news.splits;
  entry->urgency = news.urgency;
  presence_.Add(*entry);
  SendPresence();
  return absl::OkStatus();
}

void Epoch::OnUrgent(Urgency urgency, SlotEntry* entry) {
  const bool told = entry->urgency != Urgency::kNone;
  if (told || urgency == Urgency::kNone || entry->answered == entry->reported) {
    return;
  }
  entry->urgency = urgency;
  presence_.AddUrgent(*entry);
  SendPresence();
}

void Epoch::SendPresence() {
  if (auto presence = presence_.Take()) {
    proto::ExecutorMessage message;
    *message.mutable_presence() = *std::move(presence);
    Send(std::move(message));
  }
}

void Epoch::OnPresenceAcknowledged() {
  presence_.OnAcknowledged();
  SendPresence();
}

absl::Status Epoch::OnExecute(const proto::Execute& execute) {
  for (const proto::Run& run : execute.runs()) {
    if (absl::Status s = runs_.Add(run, &slots_); !s.ok()) return s;
  }
  IssueRuns();
  return absl::OkStatus();
}

void Epoch::IssueRuns() {
  while (auto run = runs_.Take())
    actions_->push_back(IssueRun{*std::move(run)});
}

void Epoch::OnRunFree(uint32_t record) {
  runs_.Free(record);
  IssueRuns();
}

absl::StatusOr<SlotEntry*> Epoch::ResolveOrAllot(
    uint32_t id, const proto::Identity* identity, uint32_t* slot) {
  if (SlotEntry* entry = slots_.Resolve(id, identity, slot)) return entry;
  if (identity == nullptr || !HasNames(identity->kind())) {
    return absl::InternalError(absl::StrCat("the coordinator speaks of ",
                                            "operation ", id,
                                            ", which this node does not know"));
  }
  const SharedSet set = sets_.Find(identity->process_set());
  if (set == nullptr || set->locals.empty()) return nullptr;
  const absl::StatusOr<uint32_t> allotted =
      Allot(set, static_cast<Kind>(identity->kind()), identity->name());
  if (!allotted.ok()) return allotted.status();
  return slots_.Resolve(id, identity, slot);
}

absl::Status Epoch::OnOperationFailed(const proto::OperationFailed& failed) {
  uint32_t slot = 0;
  const absl::StatusOr<SlotEntry*> entry = ResolveOrAllot(
      failed.id(), failed.has_identity() ? &failed.identity() : nullptr, &slot);
  // With a full table a rank that uses the name is told that instead.
  if (absl::IsResourceExhausted(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return entry.status();
  if (*entry == nullptr) return absl::OkStatus();
  (*entry)->answered = failed.generation();
  const bool known = failed.code() > 0 && failed.code() <= 16;
  actions_->push_back(FailSlot{
      slot, failed.generation(),
      known ? static_cast<Code>(failed.code()) : Code::kFailedPrecondition,
      failed.message()});
  return absl::OkStatus();
}

void Epoch::OnRankLeft(int rank, int local_rank, const std::string& text) {
  if (!left_.insert(rank).second) return;
  if (left_.size() == 1) first_left_ = rank;
  if (local_rank >= 0) {
    set_requests_.Forget(local_rank);
    joins_.Forget(local_rank);
  }
  actions_->push_back(MarkLeft{rank, local_rank, text});
}

std::string Epoch::AfterText() const {
  if (first_left_ < 0) return "";
  for (const proto::NodeInfo& node : info_.nodes) {
    const auto& ranks = node.ranks();
    if (std::find(ranks.begin(), ranks.end(),
                  static_cast<uint32_t>(first_left_)) == ranks.end()) {
      continue;
    }
    return absl::StrCat(" (after rank ", first_left_, " (node ", node.node(),
                        ") had shut down)");
  }
  return "";
}

}  // namespace maypole::worker
