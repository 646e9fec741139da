#include "common/gpu/runner/gpu_memories.h"

#include <cstring>
#include <string>
#include <utility>

namespace maypole {
namespace {

using session::GpuSharing;

Status About(GpuMemoryId id, const Status& s) {
  return Status(s.code(), "GPU memory " + std::to_string(id.number) +
                              " of local rank " + std::to_string(id.local) +
                              ": " + s.message());
}

StatusOr<GpuMemory> MakeMemory(const cuda::Gpu& gpu,
                               const session::GpuMemoryRequest& request,
                               Fd descriptor) {
  switch (static_cast<GpuSharing>(request.sharing)) {
    case GpuSharing::kDescriptor:
      return GpuMemory::Import(gpu, std::move(descriptor), request.bytes);
    case GpuSharing::kIpcHandle:
      return GpuMemory::Allocate(gpu, request.bytes);
    case GpuSharing::kOwn:
      break;  // nothing is shared
  }
  return Status(
      Code::kInvalidArgument,
      "there is no way " + std::to_string(request.sharing) + " to share it");
}

}  // namespace

GpuMemories::GpuMemories(GpuQueues* queues, OnOpened on_opened)
    : queues_(*queues), on_opened_(std::move(on_opened)) {}

void GpuMemories::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                       Fd descriptor) {
  const Status s = TryOpen(id, request, std::move(descriptor));
  if (!s.ok()) Refuse(id, s);
}

void GpuMemories::Refuse(GpuMemoryId id, const Status& why) {
  on_opened_(id, About(id, why));
}

Status GpuMemories::TryOpen(GpuMemoryId id,
                            const session::GpuMemoryRequest& request,
                            Fd descriptor) {
  if (open_.contains(id)) return Status(Code::kAlreadyExists, "it is open");
  const StatusOr<uint32_t> gpu = queues_.Find(request.uuid);
  if (!gpu.ok()) return gpu.status();
  GpuQueue& queue = queues_[*gpu];
  Status s = queue.CheckKernels();
  if (!s.ok()) return s;
  StatusOr<GpuMemory> memory =
      MakeMemory(queue.gpu(), request, std::move(descriptor));
  if (!memory.ok()) return memory.status();
  s = queue.WriteWord(memory->address(), request.proof);
  const uint64_t number = queue.launched();
  if (s.ok()) {
    s = queue.Record([=, this](Status done) { OnProof(id, number, done); });
  }
  OpenMemory opened = {*gpu, *std::move(memory), number, number};
  if (s.ok()) {
    open_.emplace(id, std::move(opened));
  } else {
    closing_.push_back(std::move(opened));
  }
  return s;
}

void GpuMemories::OnProof(GpuMemoryId id, uint64_t number,
                          const Status& status) {
  const auto it = open_.find(id);
  if (it == open_.end() || it->second.proof != number) {
    return Refuse(id, Status(Code::kCancelled, "the rank has left"));
  }
  if (!status.ok()) {
    closing_.push_back(std::move(it->second));
    open_.erase(it);
    return Refuse(id, status);
  }
  OpenedGpuMemory opened;
  opened.gpu = it->second.gpu;
  static_assert(sizeof(opened.ipc_handle) == sizeof(cuda::CUipcMemHandle));
  std::memcpy(opened.ipc_handle, &it->second.memory.ipc_handle(),
              sizeof(opened.ipc_handle));
  on_opened_(id, opened);
}

void GpuMemories::Close(uint32_t local) {
  const auto first = open_.lower_bound({local, 0});
  auto last = first;
  for (; last != open_.end() && last->first.local == local; ++last) {
    closing_.push_back(std::move(last->second));
  }
  open_.erase(first, last);
}

void GpuMemories::CloseAll() {
  for (auto& [id, memory] : open_) closing_.push_back(std::move(memory));
  open_.clear();
}

void GpuMemories::OpenOwn(const uint8_t (&uuid)[16]) {
  const StatusOr<uint32_t> gpu = queues_.Find(uuid);
  if (!gpu.ok()) return Refuse({}, gpu.status());
  own_.insert(*gpu);
  on_opened_({}, OpenedGpuMemory{.gpu = *gpu});
}

StatusOr<uint64_t> GpuMemories::AddressOf(const GpuTensor& tensor,
                                          uint64_t offset,
                                          uint64_t bytes) const {
  if (bytes == 0) return 0;
  if (tensor.memory.number == 0 && own_.contains(tensor.gpu)) return offset;
  const auto it = open_.find(tensor.memory);
  if (it == open_.end()) {
    return About(tensor.memory,
                 Status(Code::kFailedPrecondition, "it is not open"));
  }
  const OpenMemory& m = it->second;
  if (m.gpu != tensor.gpu || offset > m.memory.bytes() ||
      bytes > m.memory.bytes() - offset) {
    return About(tensor.memory, Status(Code::kInvalidArgument,
                                       "the tensor does not lie in it"));
  }
  return m.memory.address() + offset;
}

void GpuMemories::NoteUse(const GpuTensor& tensor) {
  const auto it = open_.find(tensor.memory);
  if (it == open_.end()) return;  // this process's own memory, or no bytes
  it->second.last_use = queues_[it->second.gpu].launched();
}

bool GpuMemories::Release() {
  return std::erase_if(closing_, [this](const OpenMemory& m) {
           const GpuQueue& queue = queues_[m.gpu];
           return m.last_use <= queue.ended() &&
                  (queue.gpu_idle() || !m.memory.release_waits());
         }) > 0;
}

}  // namespace maypole
