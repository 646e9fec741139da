// ExecutorEpoch: memory of GPUs that ranks share, and the reductions there.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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

// --- Reductions --------------------------------------------------------------

// The ranks' words come from shared memory: only places within their memories
// are used, and all must be on one GPU.
absl::StatusOr<GpuReduction> ExecutorEpoch::MakeGpuReduction(
    const ReadySlot& ready, const SlotEntry& entry) const {
  const Signature& s = ready.signatures.front();
  GpuReduction out{.slot = ready.slot,
                   .generation = ready.generation,
                   .dtype = s.dtype,
                   .op = s.op,
                   .elements = static_cast<uint64_t>(s.Elements()),
                   .prescale = s.prescale,
                   .postscale = s.postscale};
  if (s.op == Op::kAverage) out.divisor = entry.set->size();
  bool valid = entry.kind == Kind::kAllreduce && out.elements > 0;
  for (size_t i = 0; i < entry.set->locals.size() && valid; ++i) {
    const GpuPlace place = UnpackGpuPlace(ready.gpu_places[i]);
    const GpuMemoryId id{entry.set->locals[i], place.number};
    const auto it = gpu_memories_.find(id);
    if (i == 0) out.gpu = place.gpu;
    valid = it != gpu_memories_.end() && it->second.open &&
            it->second.gpu == out.gpu && place.gpu == out.gpu &&
            s.Bytes() <= it->second.bytes &&
            place.offset <= it->second.bytes - s.Bytes();
    out.tensors.push_back({id, place.offset});
    if (valid) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", entry.set->here[i], " has submitted ",
        std::string(Name(entry.kind)), " '", entry.name, "' with ", s.Bytes(),
        " bytes at offset ", place.offset, " of GPU memory ", place.number,
        ", where it has not got them; has a process overwritten its shared "
        "memory?"));
  }
  if (valid) return out;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(Name(entry.kind)), " '", entry.name,
                   "' cannot run on a GPU; has a process overwritten its "
                   "shared memory?"));
}

absl::Status ExecutorEpoch::OnReadyOnGpu(const ReadySlot& ready,
                                         SlotEntry* entry) {
  if (ready.generation <= entry->reported || ready.gpu_places.empty()) {
    return absl::OkStatus();
  }
  const std::string node = info_.NodeText(info_.node_index);
  if (absl::Status s = CheckReadySlot(ready, *entry, node); !s.ok()) return s;
  if (entry->reported > entry->answered)
    return SubmittedTooEarly(ready, *entry);
  entry->reported = ready.generation;
  std::vector<std::pair<int, Signature>> all;
  for (size_t i = 0; i < ready.signatures.size(); ++i) {
    all.emplace_back(entry->set->here[i], ready.signatures[i]);
  }
  const std::string mismatch = DescribeMismatch(entry->name, all);
  if (!mismatch.empty()) {
    entry->answered = ready.generation;
    actions_->push_back(FailSlot{ready.slot, ready.generation,
                                 Code::kFailedPrecondition, mismatch});
    return absl::OkStatus();
  }
  if (const int rank = FirstLeftOf(*entry->set); rank >= 0) {
    entry->answered = ready.generation;
    FailForDeparture(ready.slot, ready.generation, rank);
    return absl::OkStatus();
  }
  absl::StatusOr<GpuReduction> reduction = MakeGpuReduction(ready, *entry);
  if (!reduction.ok()) return reduction.status();
  actions_->push_back(ReduceOnGpu{*std::move(reduction)});
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnGpuReduced(uint32_t slot, uint32_t generation,
                                         const absl::Status& status) {
  SlotEntry* const entry = slots_.Get(slot);
  if (entry == nullptr || entry->reported != generation) {
    return absl::OkStatus();
  }
  entry->answered = generation;
  if (status.ok()) {
    actions_->push_back(CommitSlot{slot, generation});
    return absl::OkStatus();
  }
  // The memory of a rank that has left is closed.
  if (const int rank = FirstLeftOf(*entry->set); rank >= 0) {
    FailForDeparture(slot, generation, rank);
    return absl::OkStatus();
  }
  return absl::Status(
      status.code(),
      absl::StrCat(std::string(Name(entry->kind)), " '", entry->name,
                   "' failed on the GPU of ", info_.NodeText(info_.node_index),
                   ": ", status.message()));
}

int ExecutorEpoch::FirstLeftOf(const NodeSet& set) const {
  for (const int rank : left_) {
    if (set.Has(rank)) return rank;
  }
  return -1;
}

void ExecutorEpoch::FailForDeparture(uint32_t slot, uint32_t generation,
                                     int rank) {
  const SlotEntry& entry = *slots_.Get(slot);
  actions_->push_back(FailSlot{
      slot, generation, Code::kAborted,
      absl::StrCat(std::string(Name(entry.kind)), " '", entry.name, "': rank ",
                   rank,
                   " has shut down; operations that need it cannot run")});
}

}  // namespace maypole::worker
