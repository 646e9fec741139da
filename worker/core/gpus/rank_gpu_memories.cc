#include "worker/core/gpus/rank_gpu_memories.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gpu/nccl/nccl.h"
#include "worker/core/limits.h"

namespace maypole::worker {

absl::Status RankGpuMemories::OnRequest(
    const LocalMember& member, const session::GpuMemoryRequest& request) {
  const auto local = static_cast<uint32_t>(member.local_rank);
  uint32_t& last = requests_[local];
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
  memories_[id] = {.client = member.client,
                   .rank = member.rank,
                   .bytes = request.bytes,
                   .uuid = {std::begin(request.uuid), std::end(request.uuid)},
                   .own = own};
  if (own) {
    OnOpened(id, OwnGpu(member, request));
  } else {
    output_.Add(OpenGpuMemory{member.client, id, request});
  }
  return absl::OkStatus();
}

void RankGpuMemories::OnOpened(GpuMemoryId id,
                               const absl::StatusOr<OpenedGpuMemory>& opened) {
  const auto it = memories_.find(id);
  if (it == memories_.end()) return;  // its rank has left
  auto reply = session::Make<session::GpuMemoryReply>();
  reply.number = id.number;
  if (opened.ok()) {
    it->second.open = true;
    it->second.gpu = reply.gpu = opened->gpu;
    Report(id.local, it->second);
    std::copy(std::begin(opened->ipc_handle), std::end(opened->ipc_handle),
              reply.handle);
  }
  reply.code = static_cast<uint32_t>(opened.status().code());
  std::string text(opened.status().message());
  if (absl::IsResourceExhausted(opened.status())) {
    text += SharesText(it->second.uuid);
  }
  session::SetText(reply.text, text);
  output_.Add(ReplyClient{it->second.client, reply});
}

void RankGpuMemories::Report(uint32_t local, const Memory& memory) {
  uint64_t bytes = 0;
  for (auto it = memories_.lower_bound({local, 0});
       it != memories_.end() && it->first.local == local; ++it) {
    const Memory& m = it->second;
    if (m.open && m.own == memory.own && m.gpu == memory.gpu) bytes += m.bytes;
  }
  proto::ExecutorMessage message;
  proto::RankGpu& report = *message.mutable_rank_gpu();
  report.set_rank(static_cast<uint32_t>(memory.rank));
  report.set_gpu(memory.gpu);
  report.set_uuid(memory.uuid);
  report.set_bytes(bytes);
  report.set_own(memory.own);
  report.set_nccl_host(nccl_.host);
  output_.Send(std::move(message));
}

std::string RankGpuMemories::SharesText(const std::string& uuid) const {
  std::map<int, uint64_t> bytes;  // by rank
  for (const auto& [id, memory] : memories_) {
    if (memory.open && memory.uuid == uuid) bytes[memory.rank] += memory.bytes;
  }
  std::string text;
  for (const auto& [rank, shared] : bytes) {
    absl::StrAppend(&text, text.empty() ? "; shared there: " : ", ",
                    shared >> 20, " MiB of rank ", rank);
  }
  return text;
}

void RankGpuMemories::Forget(uint32_t local) {
  const auto end = memories_.upper_bound({local, kMaxGpuMemories});
  const auto begin = memories_.lower_bound({local, 0});
  if (begin == end) return;
  memories_.erase(begin, end);
  output_.Add(CloseGpuMemories{local});
}

void RankGpuMemories::OnRecovered() {
  for (const auto& [id, memory] : memories_) {
    if (memory.open) Report(id.local, memory);
  }
}

const RankGpuMemories::Memory* RankGpuMemories::FindOpen(GpuMemoryId id) const {
  const auto it = memories_.find(id);
  return it != memories_.end() && it->second.open ? &it->second : nullptr;
}

std::optional<ClientId> RankGpuMemories::ClientOf(uint32_t local) const {
  const auto it = memories_.lower_bound({local, 0});
  if (it == memories_.end() || it->first.local != local) return std::nullopt;
  return it->second.client;
}

// --- Ranks that call NCCL themselves -----------------------------------------

absl::StatusOr<OpenedGpuMemory> RankGpuMemories::OwnGpu(
    const LocalMember& member, const session::GpuMemoryRequest& request) {
  if (!nccl_.enabled) {
    return absl::UnavailableError(
        "the executors of this job have no NCCL, or not all the same one "
        "(event=no_nccl in the logs of the agents and the coordinator)");
  }
  if (request.nccl_version != nccl_.version) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", member.rank, " has NCCL ",
                     nccl::NcclVersion(static_cast<int>(request.nccl_version)),
                     ", the executors have NCCL ",
                     nccl::NcclVersion(static_cast<int>(nccl_.version)),
                     "; install the same version for all ranks, or name one in "
                     "MAYPOLE_NCCL_LIBRARY"));
  }
  Uuid uuid;
  std::copy(std::begin(request.uuid), std::end(request.uuid), uuid.begin());
  const auto [it, added] =
      own_gpus_.emplace(uuid, static_cast<uint32_t>(own_gpus_.size()));
  if (it->second < kMaxGpus) return OpenedGpuMemory{.gpu = it->second};
  own_gpus_.erase(it);
  return absl::ResourceExhaustedError(
      absl::StrCat("a job may use ", kMaxGpus, " GPUs of a node"));
}

bool RankGpuMemories::AnyIsOwn(const std::vector<GpuTensor>& tensors) const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const GpuTensor& t) { return IsOwn(t); });
}

bool RankGpuMemories::RanksCanRun(const std::vector<GpuTensor>& tensors) const {
  return !tensors.empty() && GpusOf(tensors).size() == tensors.size() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](const GpuTensor& t) { return IsOwn(t); });
}

}  // namespace maypole::worker
