#include "worker/core/epoch.h"

#include <utility>

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

bool IsThereYet(uint32_t kind) {
  return kind == static_cast<uint32_t>(Kind::kAllreduce) ||
         kind == static_cast<uint32_t>(Kind::kAllgather) ||
         kind == static_cast<uint32_t>(Kind::kBroadcast) ||
         kind == static_cast<uint32_t>(Kind::kBarrier);
}

// What is wrong with a request, if anything.
absl::Status CheckRequest(const session::SlotRequest& r) {
  const std::string name(r.name);
  if (name.empty()) {
    return absl::InvalidArgumentError("an operation needs a name");
  }
  if (!IsThereYet(r.kind)) {
    return absl::UnimplementedError(absl::StrCat("operation '", name,
                                                 "': collective number ",
                                                 r.kind, " is not there yet"));
  }
  if (r.process_set != 0) {
    return absl::UnimplementedError(
        absl::StrCat("operation '", name, "': process set ", r.process_set,
                     " is not there yet; use process set 0 (all ranks)"));
  }
  return absl::OkStatus();
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
                 {start.nodes().begin(), start.nodes().end()}};
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
             std::vector<Action>* actions)
    : info_(std::move(info)),
      actions_(actions),
      slots_(slots),
      presence_(info_.epoch, LocalRanks(info_)),
      runs_(NodeOfRank(info_), records) {}

absl::StatusOr<uint32_t> Epoch::Allot(uint32_t process_set, Kind kind,
                                      const std::string& name) {
  bool is_new = false;
  absl::StatusOr<uint32_t> slot =
      slots_.Allot(process_set, kind, name, &is_new);
  if (slot.ok() && is_new) {
    actions_->push_back(
        AllotSlot{*slot, IdentityHash(process_set, kind, name)});
  }
  return slot;
}

void Epoch::OnSlotRequest(ClientId client,
                          const session::SlotRequest& request) {
  auto reply = session::Make<session::SlotReply>();
  reply.request = request.request;
  absl::Status status = CheckRequest(request);
  if (status.ok()) {
    absl::StatusOr<uint32_t> slot = Allot(
        request.process_set, static_cast<Kind>(request.kind), request.name);
    if (slot.ok()) reply.slot = *slot;
    status = slot.status();
  }
  reply.negotiated = info_.several_nodes() ? 1 : 0;
  reply.code = static_cast<uint32_t>(status.code());
  session::SetText(reply.text, std::string(status.message()));
  actions_->push_back(ReplySlot{client, reply});
}

absl::Status Epoch::CheckNews(const SlotNews& news,
                              const SlotEntry& entry) const {
  const auto& ranks = info_.nodes[info_.node_index].ranks();
  if (news.signatures.size() != static_cast<size_t>(ranks.size())) {
    return absl::InternalError("signatures of the wrong number of ranks");
  }
  for (int i = 0; i < ranks.size(); ++i) {
    const Signature& s = news.signatures[i];
    const Status checked = CheckSignature(entry.name, s);
    const bool root_ok = s.kind != Kind::kBroadcast || s.root < info_.size;
    if (checked.ok() && root_ok && s.kind == entry.kind &&
        s.process_set == entry.process_set) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ranks[i], " (", info_.NodeText(info_.node_index),
                     ") has submitted ", std::string(Name(entry.kind)), " '",
                     entry.name, "' with a signature that cannot be: ",
                     checked.ok() ? "another kind, process set or root"
                                  : checked.message()));
  }
  return absl::OkStatus();
}

absl::Status Epoch::OnNews(const SlotNews& news) {
  SlotEntry* entry = slots_.Get(news.slot);
  // With one node ranks need nobody; else an old bit may be set once more.
  if (entry == nullptr || !info_.several_nodes() ||
      news.generation < entry->reported) {
    return absl::OkStatus();
  }
  if (news.generation == entry->reported) {
    OnUrgent(news.urgency, entry);
    return absl::OkStatus();
  }
  if (absl::Status s = CheckNews(news, *entry); !s.ok()) return s;
  entry->reported = news.generation;
  entry->signatures = news.signatures;
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
    actions_->push_back(SendToCoordinator{std::move(message)});
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

absl::Status Epoch::OnOperationFailed(const proto::OperationFailed& failed) {
  const proto::Identity* identity =
      failed.has_identity() ? &failed.identity() : nullptr;
  uint32_t slot = 0;
  if (slots_.Resolve(failed.id(), identity, &slot) == nullptr) {
    if (identity == nullptr) {
      return absl::InternalError(
          absl::StrCat("the coordinator has failed operation ", failed.id(),
                       ", which this node does not know"));
    }
    // No rank of this node has used the name yet; those that will shall learn.
    absl::StatusOr<uint32_t> allotted =
        Allot(identity->process_set(), static_cast<Kind>(identity->kind()),
              identity->name());
    // With a full table a rank that uses the name is told that instead.
    if (!allotted.ok()) return absl::OkStatus();
    slots_.Resolve(failed.id(), identity, &slot);
  }
  slots_.Get(slot)->answered = failed.generation();
  const bool known = failed.code() > 0 && failed.code() <= 16;
  actions_->push_back(FailSlot{
      slot, failed.generation(),
      known ? static_cast<Code>(failed.code()) : Code::kFailedPrecondition,
      failed.message()});
  return absl::OkStatus();
}

void Epoch::OnRankLeft(int rank, int local_rank, const std::string& text) {
  if (!left_.insert(rank).second) return;
  actions_->push_back(MarkLeft{local_rank, text});
}

}  // namespace maypole::worker
