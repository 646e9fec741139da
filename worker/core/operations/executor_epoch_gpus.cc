// ExecutorEpoch: memory of GPUs that ranks share, and the reductions there.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/board/gpu_place.h"
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {

// --- Memory ------------------------------------------------------------------

absl::Status ExecutorEpoch::OnGpuMemoryRequest(
    const LocalMember& member, const session::GpuMemoryRequest& request) {
  const auto local = static_cast<uint32_t>(member.local_rank);
  uint32_t& last = gpu_requests_[local];
  const auto sharing = static_cast<session::GpuSharing>(request.sharing);
  if (request.number != last + 1 || request.number > kMaxGpuMemories ||
      request.bytes == 0 || request.bytes > kMaxGpuMemoryBytes ||
      (sharing != session::GpuSharing::kDescriptor &&
       sharing != session::GpuSharing::kIpcHandle)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", member.rank, " has sent its request for GPU memory number ",
        request.number, " out of order, or with a wrong size (", request.bytes,
        " bytes) or way of sharing (", request.sharing, ")"));
  }
  last = request.number;
  const GpuMemoryId id{local, request.number};
  gpu_memories_[id] = {.client = member.client, .bytes = request.bytes};
  actions_->push_back(OpenGpuMemory{member.client, id, request});
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
    std::copy(std::begin(opened->ipc_handle), std::end(opened->ipc_handle),
              reply.handle);
  }
  reply.code = static_cast<uint32_t>(opened.status().code());
  session::SetText(reply.text, std::string(opened.status().message()));
  actions_->push_back(ReplyClient{it->second.client, reply});
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
    actions_->push_back(ConnectGpus{communicators_.at(number), *id});
    return absl::OkStatus();
  }
  proto::ExecutorMessage message;
  message.mutable_communicator_id()->set_epoch(info_.epoch);
  message.mutable_communicator_id()->set_number(number);
  message.mutable_communicator_id()->set_id(*id);
  Send(std::move(message));
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnCommunicatorId(const proto::CommunicatorId& m) {
  const auto it = communicators_.find(m.number());
  if (it == communicators_.end()) {
    return absl::InternalError(absl::StrCat(
        "the coordinator has sent an id of an unknown communicator ",
        m.number()));
  }
  actions_->push_back(ConnectGpus{it->second, m.id()});
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ExecutorEpoch::LocalCommunicator(
    const std::vector<uint32_t>& gpus) {
  if (gpus.size() == 1) return 0;
  const auto it = local_communicators_.find(gpus);
  if (it != local_communicators_.end()) return it->second;
  const size_t count = local_communicators_.size();
  if (count >= kMaxLocalCommunicators) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "operations of this node use more than ", kMaxLocalCommunicators,
        " different groups of GPUs; use fewer process sets, or set "
        "MAYPOLE_GPU_MEMORY=host"));
  }
  const GpuCommunicator c{
      .number = kMaxCommunicators + 1 + static_cast<uint32_t>(count),
      .size = static_cast<uint32_t>(gpus.size()),
      .first = 0,
      .gpus = gpus};
  local_communicators_.emplace(gpus, c.number);
  communicators_.emplace(c.number, c);
  actions_->push_back(MakeCommunicatorId{c.number});
  return c.number;
}

// --- Operations --------------------------------------------------------------

// The ranks' words come from shared memory: only places within their memories
// are used, and only for what GPUs can do.
absl::StatusOr<std::vector<GpuTensor>> ExecutorEpoch::GpuTensorsOf(
    const ReadySlot& ready, const SlotEntry& entry) const {
  std::vector<GpuTensor> out;
  if (ready.gpu_places.empty()) return out;
  for (size_t i = 0; i < entry.set->locals.size(); ++i) {
    const uint64_t bytes = ready.signatures[i].Bytes();
    const GpuPlace place = UnpackGpuPlace(ready.gpu_places[i]);
    const GpuMemoryId id{entry.set->locals[i], place.number};
    const auto it = gpu_memories_.find(id);
    const bool valid = it != gpu_memories_.end() && it->second.open &&
                       it->second.gpu == place.gpu &&
                       bytes <= it->second.bytes &&
                       place.offset <= it->second.bytes - bytes;
    if (!valid) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", entry.set->here[i], " has submitted ",
          std::string(Name(entry.kind)), " '", entry.name, "' with ", bytes,
          " bytes at offset ", place.offset, " of GPU memory ", place.number,
          ", where it has not got them; has a process overwritten its shared "
          "memory?"));
    }
    out.push_back({id, place.offset, place.gpu});
  }
  const Signature& s = ready.signatures.front();
  const bool one_gpu = !entry.set->negotiated() && GpusOf(out).size() == 1;
  if (entry.kind == Kind::kAllreduce && s.Elements() > 0 &&
      (one_gpu || (communicators_enabled_ && HasNcclType(s.dtype)))) {
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(Name(entry.kind)), " '", entry.name,
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
  absl::StatusOr<std::vector<GpuTensor>> tensors = GpuTensorsOf(ready, *entry);
  if (!tensors.ok()) return tensors.status();
  const auto communicator = LocalCommunicator(GpusOf(*tensors));
  if (!communicator.ok()) return communicator.status();
  entry->signatures = ready.signatures;
  entry->gpu_tensors = *std::move(tensors);
  GpuRun run{.communicator = *communicator};
  run.operations.push_back(MakeGpuOperation(ready.slot, *entry));
  Begin(std::move(run));
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::RunOnGpus(const proto::Run& m) {
  absl::StatusOr<GpuRun> run = runs_.AddOnGpus(m, &slots_);
  if (!run.ok()) return run.status();
  const auto it = communicators_.find(run->communicator);
  for (const GpuOperation& op : run->operations) {
    if (it != communicators_.end() && GpusOf(op.tensors) == it->second.gpus) {
      continue;
    }
    return absl::InternalError(
        absl::StrCat("the coordinator's run ", m.run(), " is on communicator ",
                     m.communicator(),
                     ", to which its tensors' GPUs do not "
                     "belong"));
  }
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
    if (status.ok()) {
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
