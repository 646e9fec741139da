// ExecutorEpoch: memory of GPUs that ranks share, and what runs there.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/board/gpu_place.h"
#include "common/gather_room.h"
#include "worker/core/operations/executor_epoch.h"
#include "worker/core/operations/gpu_operation.h"

namespace maypole::worker {

// --- Memory ------------------------------------------------------------------

absl::Status ExecutorEpoch::OnGpuMemoryRequest(
    const LocalMember& member, const session::GpuMemoryRequest& request) {
  const auto local = static_cast<uint32_t>(member.local_rank);
  uint32_t& last = gpu_requests_[local];
  const auto sharing = static_cast<session::GpuSharing>(request.sharing);
  const bool own = sharing == session::GpuSharing::kOwn;
  if (request.number != last + 1 || request.number > kMaxGpuMemories ||
      (request.bytes == 0) != own || request.bytes > kMaxGpuMemoryBytes ||
      (sharing != session::GpuSharing::kDescriptor &&
       sharing != session::GpuSharing::kIpcHandle && !own)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", member.rank, " has sent its request for GPU memory number ",
        request.number, " out of order, or with a wrong size (", request.bytes,
        " bytes) or way of sharing (", request.sharing, ")"));
  }
  last = request.number;
  const GpuMemoryId id{local, request.number};
  gpu_memories_[id] = {
      .client = member.client,
      .rank = member.rank,
      .bytes = request.bytes,
      .uuid = {std::begin(request.uuid), std::end(request.uuid)},
      .own = own};
  if (own) {
    OnGpuMemoryOpened(id, OwnGpu(member, request));
  } else {
    actions_->push_back(OpenGpuMemory{member.client, id, request});
  }
  return absl::OkStatus();
}

void ExecutorEpoch::OnGpuMemoryOpened(
    GpuMemoryId id, const absl::StatusOr<OpenedGpuMemory>& opened) {
  const auto it = gpu_memories_.find(id);
  if (it == gpu_memories_.end()) return;  // its rank has left
  auto reply = session::Make<session::GpuMemoryReply>();
  reply.number = id.number;
  if (opened.ok()) {
    it->second.open = true;
    it->second.gpu = reply.gpu = opened->gpu;
    ReportGpu(id.local, it->second);
    std::copy(std::begin(opened->ipc_handle), std::end(opened->ipc_handle),
              reply.handle);
  }
  reply.code = static_cast<uint32_t>(opened.status().code());
  std::string text(opened.status().message());
  if (absl::IsResourceExhausted(opened.status())) {
    text += SharesText(it->second.uuid);
  }
  session::SetText(reply.text, text);
  actions_->push_back(ReplyClient{it->second.client, reply});
}

// Tells the coordinator that the rank uses the GPU of this memory.
void ExecutorEpoch::ReportGpu(uint32_t local, const GpuMemory& memory) {
  uint64_t bytes = 0;
  for (auto it = gpu_memories_.lower_bound({local, 0});
       it != gpu_memories_.end() && it->first.local == local; ++it) {
    const GpuMemory& m = it->second;
    if (m.open && m.own == memory.own && m.gpu == memory.gpu) bytes += m.bytes;
  }
  proto::ExecutorMessage message;
  proto::RankGpu& report = *message.mutable_rank_gpu();
  report.set_rank(static_cast<uint32_t>(memory.rank));
  report.set_gpu(memory.gpu);
  report.set_uuid(memory.uuid);
  report.set_bytes(bytes);
  report.set_own(memory.own);
  report.set_nccl_host(nccl_host_);
  Send(std::move(message));
}

std::string ExecutorEpoch::SharesText(const std::string& uuid) const {
  std::map<int, uint64_t> bytes;  // by rank
  for (const auto& [id, memory] : gpu_memories_) {
    if (memory.open && memory.uuid == uuid) bytes[memory.rank] += memory.bytes;
  }
  std::string text;
  for (const auto& [rank, shared] : bytes) {
    absl::StrAppend(&text, text.empty() ? "; shared there: " : ", ",
                    shared >> 20, " MiB of rank ", rank);
  }
  return text;
}

void ExecutorEpoch::ForgetGpuMemories(uint32_t local) {
  const auto end = gpu_memories_.upper_bound({local, kMaxGpuMemories});
  const auto begin = gpu_memories_.lower_bound({local, 0});
  if (begin == end) return;
  gpu_memories_.erase(begin, end);
  actions_->push_back(CloseGpuMemories{local});
}

// Of an error of NCCL.
constexpr absl::string_view kNoNccl =
    " (MAYPOLE_NCCL_LIBRARY=none does without NCCL)";

// --- Communicators -----------------------------------------------------------

absl::Status ExecutorEpoch::OnCommunicator(const proto::Communicator& m) {
  told_communicators_.push_back(m);
  if (m.ranks_call_nccl()) return OnRankCommunicator(m);
  GpuCommunicator c{.number = m.number(),
                    .size = m.size(),
                    .first = m.first(),
                    .gpus = {m.gpus().begin(), m.gpus().end()}};
  bool valid = communicators_enabled_ && c.number > 0 &&
               c.number <= kMaxCommunicators && !c.gpus.empty() &&
               c.first < c.size && c.gpus.size() <= c.size - c.first &&
               c.gpus.back() < kMaxGpus;
  for (size_t i = 1; i < c.gpus.size(); ++i) {
    valid = valid && c.gpus[i - 1] < c.gpus[i];
  }
  if (!valid || !communicators_.emplace(c.number, c).second) {
    return absl::InternalError(
        absl::StrCat("the coordinator's communicator ", c.number,
                     " is not valid, or was announced before"));
  }
  if (c.first == 0) actions_->push_back(MakeCommunicatorId{c.number});
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnCommunicatorIdMade(
    uint32_t number, const absl::StatusOr<std::string>& id) {
  if (!id.ok()) {
    return absl::Status(id.status().code(),
                        absl::StrCat("NCCL cannot connect the GPUs of ",
                                     info_.NodeText(info_.node_index), ": ",
                                     id.status().message(), kNoNccl));
  }
  if (number > kMaxCommunicators) {  // of this node alone
    if (!ConnectRanks(number, *id)) {
      actions_->push_back(ConnectGpus{communicators_.at(number), *id});
    }
    return absl::OkStatus();
  }
  proto::ExecutorMessage message;
  message.mutable_communicator_id()->set_number(number);
  message.mutable_communicator_id()->set_id(*id);
  communicator_ids_[number] = message.communicator_id();
  Send(std::move(message));
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnCommunicatorId(const proto::CommunicatorId& m) {
  communicator_ids_[m.number()] = m;
  ids_received_.insert(m.number());
  if (ConnectRanks(m.number(), m.id())) return absl::OkStatus();
  const auto it = communicators_.find(m.number());
  if (it == communicators_.end()) {
    return absl::InternalError(absl::StrCat(
        "the coordinator has sent an id of an unknown communicator ",
        m.number()));
  }
  actions_->push_back(ConnectGpus{it->second, m.id()});
  return absl::OkStatus();
}

std::optional<uint32_t> ExecutorEpoch::LocalCommunicator(
    const std::vector<uint32_t>& gpus) {
  if (gpus.size() == 1) return 0;
  const auto it = local_communicators_.find(gpus);
  if (it != local_communicators_.end()) return it->second;
  const std::optional<uint32_t> number = NextLocalCommunicator();
  if (!number) return number;
  const GpuCommunicator c{.number = *number,
                          .size = static_cast<uint32_t>(gpus.size()),
                          .first = 0,
                          .gpus = gpus};
  local_communicators_.emplace(gpus, c.number);
  communicators_.emplace(c.number, c);
  actions_->push_back(MakeCommunicatorId{c.number});
  return c.number;
}

std::optional<uint32_t> ExecutorEpoch::NextLocalCommunicator() const {
  const size_t count =
      local_communicators_.size() + local_rank_communicators_.size();
  if (count >= kMaxLocalCommunicators) return std::nullopt;
  return kMaxCommunicators + 1 + static_cast<uint32_t>(count);
}

// --- Operations --------------------------------------------------------------

// The ranks' words come from shared memory: only places within their memories
// are used, and only for what GPUs can do.
absl::Status ExecutorEpoch::TakeGpuTensors(const ReadySlot& ready,
                                           SlotEntry* entry) const {
  entry->gpu_tensors.clear();
  entry->gpu_rooms.clear();
  if (ready.gpu_places.empty()) return absl::OkStatus();
  const bool gathers = Gathers(entry->kind);
  for (size_t i = 0; i < entry->set->locals.size(); ++i) {
    const uint64_t bytes = ready.signatures[i].Bytes();
    const uint64_t room = gathers ? ready.gpu_rooms[i] : 0;
    const uint64_t result_at = gathers ? GpuResultAt(bytes) : bytes;
    const GpuPlace place = UnpackGpuPlace(ready.gpu_places[i]);
    const GpuMemoryId id{entry->set->locals[i], place.number};
    const auto it = gpu_memories_.find(id);
    const bool open = it != gpu_memories_.end() && it->second.open &&
                      it->second.gpu == place.gpu;
    const bool valid =
        open && (it->second.own
                     ? place.offset == 0 && room <= kMaxGpuMemoryBytes
                     : room <= it->second.bytes &&
                           result_at <= it->second.bytes - room &&
                           place.offset <= it->second.bytes - room - result_at);
    if (!valid) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", entry->set->here[i], " has submitted ",
          std::string(Name(entry->kind)), " '", entry->name, "' with ", bytes,
          " bytes and room for ", room, " at offset ", place.offset,
          " of GPU memory ", place.number,
          ", where it has not got them; has a process overwritten its shared "
          "memory?"));
    }
    entry->gpu_tensors.push_back(
        {id, place.offset, place.gpu,
         gathers ? place.offset + result_at : kInPlace});
    if (gathers) entry->gpu_rooms.push_back(room);
  }
  const Signature& s = ready.signatures.front();
  const bool one_gpu =
      !entry->set->negotiated() && GpusOf(entry->gpu_tensors).size() == 1;
  const bool has_type = !Reduces(s.kind) || HasNcclType(s.dtype);
  if ((gathers || (s.kind != Kind::kBarrier && s.Elements() > 0)) &&
      (one_gpu || (communicators_enabled_ && has_type))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(Name(entry->kind)), " '", entry->name,
                   "' cannot run on GPUs; has a process overwritten its "
                   "shared memory?"));
}

absl::Status ExecutorEpoch::OnReadyOnGpu(const ReadySlot& ready,
                                         SlotEntry* entry) {
  if (ready.generation <= entry->reported || ready.gpu_places.empty()) {
    return absl::OkStatus();
  }
  const std::string node = info_.NodeText(info_.node_index);
  if (absl::Status s = CheckReadySlot(ready, *entry, node); !s.ok()) return s;
  if (entry->on_gpu != 0) return SubmittedTooEarly(ready, *entry);
  entry->reported = entry->answered = ready.generation;
  std::vector<std::pair<int, Signature>> all;
  for (size_t i = 0; i < ready.signatures.size(); ++i) {
    all.emplace_back(entry->set->here[i], ready.signatures[i]);
  }
  const std::string mismatch = DescribeMismatch(entry->name, all);
  if (!mismatch.empty()) {
    actions_->push_back(FailSlot{ready.slot, ready.generation,
                                 Code::kFailedPrecondition, mismatch});
    return absl::OkStatus();
  }
  if (const int rank = FirstLeftOf(*entry->set); rank >= 0) {
    FailForDeparture(ready.slot, ready.generation, rank);
    return absl::OkStatus();
  }
  if (absl::Status s = TakeGpuTensors(ready, entry); !s.ok()) return s;
  entry->signatures = ready.signatures;
  entry->splits = ready.splits;
  const bool gathers = Gathers(entry->kind);
  const std::vector<int64_t> rows =
      gathers ? LocalRows(*entry) : std::vector<int64_t>();
  const uint64_t row_bytes = entry->signatures.front().RowBytes();
  if (gathers &&
      !ResultsHaveRoom(entry->kind, row_bytes, rows, RoomsOf(*entry))) {
    actions_->push_back(RunOnHost{ready.slot, ready.generation});
    return absl::OkStatus();
  }
  return AnyIsOwn(entry->gpu_tensors)
             ? RunOnRanks(ready.slot, *entry)
             : RunOnLocalGpus(ready.slot, *entry, rows);
}

absl::Status ExecutorEpoch::RunOnLocalGpus(uint32_t slot,
                                           const SlotEntry& entry,
                                           const std::vector<int64_t>& rows) {
  const std::vector<uint32_t> gpus = GpusOf(entry.gpu_tensors);
  const auto communicator = LocalCommunicator(gpus);
  if (!communicator) {
    actions_->push_back(RunOnHost{slot, entry.reported});
    return absl::OkStatus();
  }
  std::vector<uint32_t> member_gpus(entry.set->ranks.size(), 0);
  for (size_t i = 0; i < entry.gpu_tensors.size(); ++i) {
    const auto at =
        static_cast<size_t>(entry.set->PositionOf(entry.set->here[i]));
    member_gpus[at] = static_cast<uint32_t>(
        std::find(gpus.begin(), gpus.end(), entry.gpu_tensors[i].gpu) -
        gpus.begin());
  }
  GpuRun run{.communicator = *communicator};
  run.operations.push_back(MakeGpuOperation(slot, entry, member_gpus, rows));
  Begin(std::move(run));
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::RunOnGpus(const proto::Run& m) {
  const auto it = communicators_.find(m.communicator());
  if (it == communicators_.end() || m.communicator() > kMaxCommunicators) {
    return absl::InternalError(
        absl::StrCat("the coordinator's run ", m.run(), " is on communicator ",
                     m.communicator(), ", which it has not announced"));
  }
  absl::StatusOr<GpuRun> run = runs_.AddOnGpus(m, it->second, &slots_);
  if (!run.ok()) return run.status();
  Begin(*std::move(run));
  return absl::OkStatus();
}

void ExecutorEpoch::Begin(GpuRun run) {
  for (const GpuOperation& op : run.operations) {
    slots_.Get(op.slot)->on_gpu = op.generation;
  }
  actions_->push_back(worker::RunOnGpus{std::move(run)});
}

absl::Status ExecutorEpoch::OnGpuRunEnded(const GpuRun& run,
                                          const absl::Status& status) {
  for (const GpuOperation& op : run.operations) {
    SlotEntry* const entry = slots_.Get(op.slot);
    if (entry == nullptr || entry->on_gpu != op.generation) continue;
    entry->on_gpu = 0;
    // The memory of a rank that has left is closed.
    const int left = FirstLeftOf(*entry->set);
    if (status.ok() && entry->set->negotiated() && Gathers(entry->kind)) {
      if (absl::Status s = runs_.EndOnGpus(op.slot); !s.ok()) return s;
      IssueRuns();
    } else if (status.ok()) {
      actions_->push_back(CommitSlot{op.slot, op.generation});
    } else if (!entry->set->negotiated() && left >= 0) {
      FailForDeparture(op.slot, op.generation, left,
                       absl::StrCat(" (", status.message(), ")"));
    } else {
      gpus_lost_ = true;
      // A lost node is no fault of NCCL's.
      const bool of_nccl =
          run.communicator != 0 && !absl::IsUnavailable(status);
      const absl::string_view hint = of_nccl ? kNoNccl : "";
      return absl::Status(status.code(),
                          absl::StrCat(std::string(Name(entry->kind)), " '",
                                       entry->name, "' failed on the GPU of ",
                                       info_.NodeText(info_.node_index), ": ",
                                       status.message(), hint));
    }
  }
  return absl::OkStatus();
}

int ExecutorEpoch::FirstLeftOf(const NodeSet& set) const {
  for (const int rank : left_) {
    if (set.Has(rank)) return rank;
  }
  return -1;
}

void ExecutorEpoch::FailForDeparture(uint32_t slot, uint32_t generation,
                                     int rank, absl::string_view detail) {
  const SlotEntry& entry = *slots_.Get(slot);
  actions_->push_back(FailSlot{
      slot, generation, Code::kAborted,
      absl::StrCat(std::string(Name(entry.kind)), " '", entry.name, "': rank ",
                   rank, " has shut down; operations that need it cannot run",
                   detail)});
}

}  // namespace maypole::worker
