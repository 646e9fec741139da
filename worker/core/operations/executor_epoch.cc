#include "worker/core/operations/executor_epoch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"

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

}  // namespace

std::string EpochInfo::NodeText(uint32_t node) const {
  return absl::StrCat("node ", nodes[node].node(), " (host ",
                      nodes[node].host(), ")");
}

uint32_t EpochInfo::OldestNode() const {
  uint32_t oldest = 0;
  for (uint32_t i = 1; i < nodes.size(); ++i) {
    if (nodes[i].protocol_version() < nodes[oldest].protocol_version()) {
      oldest = i;
    }
  }
  return oldest;
}

absl::Status CheckVersions(const EpochInfo& info, VersionRange own) {
  const uint32_t least = info.OldestNode();
  const auto name = [&info](uint32_t node) {
    return absl::StrCat("maypole-worker on ", info.NodeText(node));
  };
  const uint32_t smallest = info.nodes[least].protocol_version();
  uint32_t version = 0;
  const maypole::Status s = ChooseVersion(
      {{name(least), {smallest, smallest}}, {name(info.node_index), own}},
      &version);
  if (s.ok()) return absl::OkStatus();
  return ToAbsl(
      maypole::Status(s.code(), "the job cannot start: " + s.message()));
}

absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks) {
  const auto bad = [&](const std::string& what) {
    return absl::InternalError(absl::StrCat("the coordinator's start of epoch ",
                                            start.epoch(),
                                            " is wrong: ", what));
  };
  EpochInfo info{
      start.epoch(),          static_cast<int>(start.size()),
      start.node_index(),     {start.nodes().begin(), start.nodes().end()},
      start.stall_check_ms(), start.checksums(),
      start.chunk_bytes(),    start.sends_inputs()};
  if (start.size() < 1 || start.size() > static_cast<uint32_t>(kMaxRanks) ||
      info.node_index >= info.nodes.size()) {
    return bad("size or node index out of range");
  }
  if (info.chunk_bytes == 0) return bad("chunks of 0 bytes");
  std::set<uint32_t> seen;
  for (const proto::NodeInfo& node : info.nodes) {
    for (const uint32_t rank : node.ranks()) {
      if (rank >= start.size() || !seen.insert(rank).second) {
        return bad(absl::StrCat("rank ", rank, " is invalid or repeated"));
      }
    }
  }
  if (seen.size() != start.size()) return bad("ranks are missing");
  if (LocalRanks(info) != local_ranks) {
    return bad("it does not list the ranks of this node");
  }
  return info;
}

ExecutorEpoch::ExecutorEpoch(EpochInfo info, uint32_t slots, uint32_t records,
                             int64_t frozen_timeout_ms,
                             std::vector<Action>* actions)
    : info_(std::move(info)),
      actions_(actions),
      sets_(NodeOfRank(info_), LocalRanks(info_)),
      slots_(slots),
      recalls_(&slots_),
      runs_(static_cast<uint32_t>(info_.size), info_.node_index, records),
      sends_inputs_(info_.sends_inputs),
      schedule_(info_.node_index, static_cast<uint32_t>(info_.nodes.size())),
      local_stragglers_(info_.stall_check_ms),
      frozen_(static_cast<uint32_t>(info_.nodes[info_.node_index].ranks_size()),
              frozen_timeout_ms) {}

void ExecutorEpoch::Send(proto::ExecutorMessage message) {
  if (quiet_) return;
  message.set_epoch(info_.epoch);
  actions_->push_back(SendToCoordinator{std::move(message)});
}

absl::Status ExecutorEpoch::OnReadySlot(const ReadySlot& ready) {
  SlotEntry* entry = slots_.Get(ready.slot);
  if (entry == nullptr) return absl::OkStatus();
  // Operations within the node need no report.
  if (!entry->set->negotiated()) return OnReadyOnGpu(ready, entry);
  // A ready bit may have been set again for an old generation.
  if (ready.generation < entry->reported) {
    return absl::OkStatus();
  }
  if (ready.generation == entry->reported) {
    OnUrgent(ready, entry);
    return absl::OkStatus();
  }
  const std::string node = info_.NodeText(info_.node_index);
  if (absl::Status s = CheckReadySlot(ready, *entry, node); !s.ok()) return s;
  // Ranks submit a name again only after the last operation of that name has
  // ended, unless it fails because a rank has left. The coordinator does not
  // accept two at once.
  const bool pending = entry->reported > entry->answered || entry->on_gpu != 0;
  if (pending && FirstLeftOf(*entry->set) < 0) {
    return SubmittedTooEarly(ready, *entry);
  }
  entry->reported = ready.generation;
  entry->retiring = false;
  entry->signatures = ready.signatures;
  entry->splits = ready.splits;
  if (absl::Status s = TakeGpuTensors(ready, entry); !s.ok()) return s;
  entry->ranks_call_nccl = RanksCanRun(entry->gpu_tensors);
  // Theirs and memory that is shared do not go together.
  if (!entry->ranks_call_nccl && AnyIsOwn(entry->gpu_tensors)) {
    entry->gpu_tensors.clear();
    entry->gpu_rooms.clear();
  }
  entry->urgency = ready.urgency;
  entry->copied = ready.copied;
  entry->inputs_sent = false;
  if (schedule_.active()) return AddToSchedule(ready.slot, *entry);
  std::optional<SendToPeers> inputs = InputsOf(ready.slot, *entry);
  entry->inputs_sent = inputs.has_value();
  presence_.Add(*entry);
  SendPresence();  // first, as the way over the coordinator is longer
  if (inputs) actions_->push_back(*std::move(inputs));
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::SubmittedTooEarly(const ReadySlot& ready,
                                              const SlotEntry& entry) const {
  return absl::InvalidArgumentError(absl::StrCat(
      entry.set->RanksText(), ": those of ", info_.NodeText(info_.node_index),
      " have submitted ", std::string(Name(entry.kind)), " '", entry.name,
      "' (call ", ready.generation - entry.first, ") before call ",
      entry.reported - entry.first,
      " had ended; has a process overwritten its shared memory?"));
}

void ExecutorEpoch::OnUrgent(const ReadySlot& ready, SlotEntry* entry) {
  const bool told = entry->urgency != Urgency::kNone;
  if (told || ready.urgency == Urgency::kNone ||
      entry->answered == entry->reported) {
    return;
  }
  entry->urgency = ready.urgency;
  if (schedule_.active()) return schedule_.Urge(ready.slot);
  presence_.AddUrgent(*entry);
  SendPresence();
}

void ExecutorEpoch::SendPresence() {
  if (quiet_) return;
  if (auto presence = presence_.Take()) {
    proto::ExecutorMessage message;
    *message.mutable_presence() = *std::move(presence);
    Send(std::move(message));
  }
}

void ExecutorEpoch::OnPresenceAcknowledged() {
  presence_.OnAcknowledged();
  SendPresence();
}

absl::Status ExecutorEpoch::OnExecute(const proto::Execute& execute) {
  for (const proto::Run& run : execute.runs()) {
    absl::Status s = run.inputs_sent()         ? BeginSmall(run)
                     : run.communicator() == 0 ? runs_.Add(run, &slots_)
                     : rank_communicators_.contains(run.communicator())
                         ? RunOnRanks(run)
                         : RunOnGpus(run);
    if (s.ok() && info_.checksums != 0) s = ExpectResults(run);
    if (!s.ok()) return s;
    LearnFrom(run);
  }
  IssueRuns();
  return FinishSmallRuns();
}

void ExecutorEpoch::IssueRuns() {
  while (auto run = runs_.Take())
    actions_->push_back(IssueRun{*std::move(run)});
}

void ExecutorEpoch::OnRunFree(uint32_t record) {
  runs_.Free(record);
  IssueRuns();
}

absl::Status ExecutorEpoch::OnOperationFailed(
    const proto::OperationFailed& failed) {
  uint32_t slot = 0;
  const absl::StatusOr<SlotEntry*> entry = ResolveOrAllot(
      failed.id(), failed.has_identity() ? &failed.identity() : nullptr, &slot);
  // If the slot table is full, ranks that use the name get that error instead.
  if (absl::IsResourceExhausted(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return entry.status();
  if (*entry == nullptr) return absl::OkStatus();
  const uint32_t generation = (*entry)->GenerationOf(failed.generation());
  // A coordinator that has replaced another tells all nodes of its set.
  if (quiet_ && generation > (*entry)->reported) return absl::OkStatus();
  (*entry)->answered = generation;
  // The coordinator has no id for it and will count generations from here.
  if (failed.id() == 0) slots_.ForgetId(*entry);
  const bool known = failed.code() > 0 && failed.code() <= 16;
  actions_->push_back(FailSlot{
      slot, generation,
      known ? static_cast<Code>(failed.code()) : Code::kFailedPrecondition,
      failed.message()});
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnRankLeft(int rank, int local_rank,
                                       const std::string& text) {
  if (!left_.insert(rank).second) return absl::OkStatus();
  if (left_.size() == 1) first_left_ = rank;
  if (local_rank >= 0) {
    set_requests_.Forget(local_rank);
    member_requests_.Forget(local_rank);
    std::erase_if(asked_sets_, [rank](const auto& asked) {
      return asked.first.second == static_cast<uint32_t>(rank);
    });
    joins_.Forget(local_rank);
    ForgetSlotsOf(static_cast<uint32_t>(local_rank));
    ForgetGpuMemories(static_cast<uint32_t>(local_rank));
  }
  actions_->push_back(MarkLeft{rank, local_rank, text});
  return LeaveSchedule(proto::SCHEDULE_RANK_LEFT,
                       absl::StrCat("rank ", rank, " has left"));
}

const std::string* ExecutorEpoch::NodeOf(int rank) const {
  for (const proto::NodeInfo& node : info_.nodes) {
    const auto& ranks = node.ranks();
    if (std::find(ranks.begin(), ranks.end(), static_cast<uint32_t>(rank)) !=
        ranks.end()) {
      return &node.node();
    }
  }
  return nullptr;
}

std::string ExecutorEpoch::LeftText(int rank) const {
  const std::string* node = NodeOf(rank);
  return absl::StrCat(
      "rank ", rank, node == nullptr ? "" : absl::StrCat(" (node ", *node, ")"),
      " has shut down; operations that need it cannot run");
}

std::string ExecutorEpoch::AfterText() const {
  const std::string* node = first_left_ < 0 ? nullptr : NodeOf(first_left_);
  if (node == nullptr) return "";
  return absl::StrCat(" (after rank ", first_left_, " (node ", *node,
                      ") had shut down)");
}

}  // namespace maypole::worker
