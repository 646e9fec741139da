#include "worker/gpu/gpu_memories.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

using session::GpuSharing;

absl::Status About(GpuMemoryId id, const absl::Status& s) {
  return absl::Status(s.code(),
                      absl::StrCat("GPU memory ", id.number, " of local rank ",
                                   id.local, ": ", s.message()));
}

absl::StatusOr<GpuMemory> MakeMemory(const cuda::Gpu& gpu,
                                     const session::GpuMemoryRequest& request,
                                     Fd descriptor) {
  switch (static_cast<GpuSharing>(request.sharing)) {
    case GpuSharing::kDescriptor:
      return GpuMemory::Import(gpu, std::move(descriptor), request.bytes);
    case GpuSharing::kIpcHandle:
      return GpuMemory::Allocate(gpu, request.bytes);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no way ", request.sharing, " to share it"));
}

}  // namespace

GpuMemories::GpuMemories(GpuQueues* queues, OnOpened on_opened)
    : queues_(*queues), on_opened_(std::move(on_opened)) {}

void GpuMemories::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                       Fd descriptor) {
  const absl::Status s = TryOpen(id, request, std::move(descriptor));
  if (!s.ok()) Refuse(id, s);
}

void GpuMemories::Refuse(GpuMemoryId id, const absl::Status& why) {
  on_opened_(id, About(id, why));
}

absl::Status GpuMemories::TryOpen(GpuMemoryId id,
                                  const session::GpuMemoryRequest& request,
                                  Fd descriptor) {
  if (open_.contains(id)) return absl::AlreadyExistsError("it is open");
  const absl::StatusOr<uint32_t> gpu = queues_.Find(request.uuid);
  if (!gpu.ok()) return gpu.status();
  GpuQueue& queue = queues_[*gpu];
  absl::StatusOr<GpuMemory> memory =
      MakeMemory(queue.gpu(), request, std::move(descriptor));
  if (!memory.ok()) return memory.status();
  absl::Status s = queue.WriteWord(memory->address(), request.proof);
  const uint64_t number = queue.launched();
  if (s.ok()) {
    s = queue.Record(
        [=, this](absl::Status done) { OnProof(id, number, done); });
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
                          const absl::Status& status) {
  const auto it = open_.find(id);
  if (it == open_.end() || it->second.proof != number) {
    return Refuse(id, absl::CancelledError("the rank has left"));
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

absl::StatusOr<uint64_t> GpuMemories::AddressOf(const GpuTensor& tensor,
                                                uint64_t bytes) const {
  const auto it = open_.find(tensor.memory);
  if (it == open_.end()) {
    return About(tensor.memory,
                 absl::FailedPreconditionError("it is not open"));
  }
  const OpenMemory& m = it->second;
  if (m.gpu != tensor.gpu || tensor.offset > m.memory.bytes() ||
      bytes > m.memory.bytes() - tensor.offset) {
    return About(tensor.memory,
                 absl::InvalidArgumentError("the tensor does not lie in it"));
  }
  return m.memory.address() + tensor.offset;
}

void GpuMemories::NoteUse(const GpuTensor& tensor) {
  OpenMemory& m = open_.at(tensor.memory);
  m.last_use = queues_[m.gpu].launched();
}

bool GpuMemories::Release() {
  return std::erase_if(closing_, [this](const OpenMemory& m) {
           const GpuQueue& queue = queues_[m.gpu];
           return m.last_use <= queue.ended() &&
                  (queue.gpu_idle() || !m.memory.release_waits());
         }) > 0;
}

}  // namespace maypole::worker
