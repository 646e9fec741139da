#include "worker/gpu/gpu_work.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/gpu/kernels/kernels.h"
#include "common/limits.h"
#include "common/types.h"

namespace maypole::worker {
namespace {

using cuda::CUuuid;
using cuda::Gpu;
using session::GpuSharing;

std::string NameOf(GpuMemoryId id) {
  return absl::StrCat("GPU memory ", id.number, " of local rank ", id.local);
}

absl::Status About(GpuMemoryId id, const absl::Status& s) {
  return absl::Status(s.code(), absl::StrCat(NameOf(id), ": ", s.message()));
}

// The GPU of this process that has the UUID.
absl::StatusOr<const Gpu*> FindGpu(const cuda::Driver& driver,
                                   const CUuuid& uuid) {
  int count = 0;
  Status s =
      CudaStatus(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!s.ok()) return ToAbsl(s);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::CUdevice number = 0;
    CUuuid other = {};
    if (driver.cuDeviceGet(&number, ordinal) != cuda::CUDA_SUCCESS ||
        driver.cuDeviceGetUuid(&other, number) != cuda::CUDA_SUCCESS ||
        std::memcmp(other.bytes, uuid.bytes, sizeof(uuid.bytes)) != 0) {
      continue;
    }
    const Gpu* gpu = nullptr;
    s = Gpu::Open(driver, ordinal, &gpu);
    if (!s.ok()) return ToAbsl(s);
    return gpu;
  }
  return absl::NotFoundError(absl::StrCat(
      "the executor sees no GPU ", cuda::UuidText(uuid), " among its ", count,
      "; CUDA_VISIBLE_DEVICES of the agent may hide it"));
}

absl::StatusOr<GpuMemory> MakeMemory(const Gpu& gpu,
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

absl::Status CheckNumbers(const GpuReduction& r) {
  if (IsKnown(r.dtype) && IsKnown(r.op) && r.elements > 0 &&
      r.elements <= kMaxGpuMemoryBytes && !r.tensors.empty() &&
      r.tensors.size() <= cuda::kMaxReduced && r.divisor >= 1 &&
      r.divisor <= cuda::kMaxDivisor) {
    return {};
  }
  return absl::InvalidArgumentError("no such reduction is possible on a GPU");
}

}  // namespace

GpuWork::GpuWork(EpochGpus::Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {}

// --- Memory ------------------------------------------------------------------

void GpuWork::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                   Fd descriptor) {
  const absl::Status s = TryOpen(id, request, std::move(descriptor));
  if (!s.ok()) callbacks_.on_opened(id, About(id, s));
}

absl::Status GpuWork::TryOpen(GpuMemoryId id,
                              const session::GpuMemoryRequest& request,
                              Fd descriptor) {
  if (open_.contains(id)) return absl::AlreadyExistsError("it is open");
  const absl::StatusOr<uint32_t> gpu = QueueOf(request.uuid);
  if (!gpu.ok()) return gpu.status();
  GpuQueue& queue = *queues_[*gpu];
  absl::StatusOr<GpuMemory> memory =
      MakeMemory(queue.gpu(), request, std::move(descriptor));
  if (!memory.ok()) return memory.status();
  const uint64_t number = queue.launched() + 1;
  const absl::Status s = queue.WriteWord(
      memory->address(), request.proof,
      [=, this](absl::Status done) { OnProof(id, number, done); });
  OpenMemory opened = {*gpu, *std::move(memory), queue.launched(), number};
  if (s.ok()) {
    open_.emplace(id, std::move(opened));
  } else {
    closing_.push_back(std::move(opened));
  }
  return s;
}

absl::StatusOr<uint32_t> GpuWork::QueueOf(const uint8_t (&uuid)[16]) {
  const cuda::Driver* driver = nullptr;
  if (const Status s = cuda::LoadDriver(&driver); !s.ok()) return ToAbsl(s);
  CUuuid wanted = {};
  std::memcpy(wanted.bytes, uuid, sizeof(wanted.bytes));
  const absl::StatusOr<const Gpu*> gpu = FindGpu(*driver, wanted);
  if (!gpu.ok()) return gpu.status();
  for (uint32_t i = 0; i < queues_.size(); ++i) {
    if (&queues_[i]->gpu() == *gpu) return i;
  }
  if (queues_.size() >= kMaxGpus) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a job may use ", kMaxGpus, " GPUs of a node"));
  }
  absl::StatusOr<std::unique_ptr<GpuQueue>> queue = GpuQueue::Make(**gpu);
  if (!queue.ok()) return queue.status();
  queues_.push_back(*std::move(queue));
  return static_cast<uint32_t>(queues_.size() - 1);
}

void GpuWork::OnProof(GpuMemoryId id, uint64_t number,
                      const absl::Status& status) {
  const auto it = open_.find(id);
  if (it == open_.end() || it->second.proof != number) {
    return callbacks_.on_opened(
        id, About(id, absl::CancelledError("the rank has left")));
  }
  if (!status.ok()) {
    closing_.push_back(std::move(it->second));
    open_.erase(it);
    return callbacks_.on_opened(id, About(id, status));
  }
  EpochGpus::Opened opened;
  opened.gpu = it->second.gpu;
  static_assert(sizeof(opened.ipc_handle) == sizeof(cuda::CUipcMemHandle));
  std::memcpy(opened.ipc_handle, &it->second.memory.ipc_handle(),
              sizeof(opened.ipc_handle));
  callbacks_.on_opened(id, opened);
}

void GpuWork::Close(uint32_t local) {
  const auto first = open_.lower_bound({local, 0});
  auto last = first;
  for (; last != open_.end() && last->first.local == local; ++last) {
    closing_.push_back(std::move(last->second));
  }
  open_.erase(first, last);
}

void GpuWork::CloseAll() {
  for (auto& [id, memory] : open_) closing_.push_back(std::move(memory));
  open_.clear();
}

bool GpuWork::Release() {
  return std::erase_if(closing_, [this](const OpenMemory& m) {
           const GpuQueue& queue = *queues_[m.gpu];
           return m.last_use <= queue.ended() &&
                  (queue.gpu_idle() || !m.memory.release_waits());
         }) > 0;
}

// --- Reductions --------------------------------------------------------------

void GpuWork::Reduce(const GpuReduction& reduction) {
  const absl::Status s = TryReduce(reduction);
  if (!s.ok()) callbacks_.on_reduced(reduction, s);
}

absl::Status GpuWork::TryReduce(const GpuReduction& reduction) {
  if (absl::Status s = CheckNumbers(reduction); !s.ok()) return s;
  const auto addresses = AddressesOf(reduction);
  if (!addresses.ok()) return addresses.status();
  GpuQueue& queue = *queues_[reduction.gpu];
  absl::Status s =
      queue.Reduce({.dtype = reduction.dtype,
                    .inputs = *addresses,
                    .outputs = *addresses,
                    .elements = reduction.elements,
                    .prescale = reduction.prescale,
                    .divisor = reduction.divisor,
                    .postscale = reduction.postscale},
                   reduction.op, [this, reduction](absl::Status done) {
                     callbacks_.on_reduced(reduction, done);
                   });
  for (const GpuRange& tensor : reduction.tensors) {
    open_.at(tensor.memory).last_use = queue.launched();
  }
  return s;
}

absl::StatusOr<std::vector<uint64_t>> GpuWork::AddressesOf(
    const GpuReduction& reduction) const {
  const uint64_t bytes = reduction.elements * SizeOf(reduction.dtype);
  std::vector<uint64_t> addresses;
  for (const GpuRange& tensor : reduction.tensors) {
    const auto it = open_.find(tensor.memory);
    if (it == open_.end()) {
      return About(tensor.memory,
                   absl::FailedPreconditionError("it is not open"));
    }
    const OpenMemory& m = it->second;
    if (m.gpu != reduction.gpu || tensor.offset > m.memory.bytes() ||
        bytes > m.memory.bytes() - tensor.offset) {
      return About(tensor.memory,
                   absl::InvalidArgumentError("the tensor does not lie in it"));
    }
    addresses.push_back(m.memory.address() + tensor.offset);
  }
  return addresses;
}

// --- Progress ----------------------------------------------------------------

bool GpuWork::Poll() {
  bool changed = false;
  for (const auto& queue : queues_) changed |= queue->Poll();
  return Release() || changed;
}

bool GpuWork::full() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->full(); });
}

bool GpuWork::idle() const {
  return closing_.empty() &&
         std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->idle(); });
}

}  // namespace maypole::worker
