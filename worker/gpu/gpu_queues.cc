#include "worker/gpu/gpu_queues.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/gpu/driver.h"
#include "common/gpu/gpu.h"
#include "common/limits.h"

namespace maypole::worker {
namespace {

using cuda::CUuuid;
using cuda::Gpu;

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

}  // namespace

absl::StatusOr<uint32_t> GpuQueues::Find(const uint8_t (&uuid)[16]) {
  const cuda::Driver* driver = nullptr;
  if (const Status s = cuda::LoadDriver(&driver); !s.ok()) return ToAbsl(s);
  CUuuid wanted = {};
  std::memcpy(wanted.bytes, uuid, sizeof(wanted.bytes));
  const absl::StatusOr<const Gpu*> gpu = FindGpu(*driver, wanted);
  if (!gpu.ok()) return gpu.status();
  for (uint32_t i = 0; i < size(); ++i) {
    if (&queues_[i]->gpu() == *gpu) return i;
  }
  if (size() >= kMaxGpus) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a job may use ", kMaxGpus, " GPUs of a node"));
  }
  absl::StatusOr<std::unique_ptr<GpuQueue>> queue = GpuQueue::Make(**gpu);
  if (!queue.ok()) return queue.status();
  queues_.push_back(*std::move(queue));
  return size() - 1;
}

bool GpuQueues::Poll() {
  bool changed = false;
  for (const auto& queue : queues_) changed |= queue->Poll();
  return changed;
}

bool GpuQueues::full() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->full(); });
}

bool GpuQueues::idle() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->idle(); });
}

}  // namespace maypole::worker
