#include "common/gpu/runner/gpu_queues.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/gpu/driver.h"
#include "common/gpu/gpu.h"
#include "common/limits.h"

namespace maypole {
namespace {

using cuda::CUuuid;
using cuda::Gpu;

// The GPU of this process that has the UUID.
StatusOr<const Gpu*> FindGpu(const cuda::Driver& driver, const CUuuid& uuid) {
  int count = 0;
  Status s =
      CudaStatus(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!s.ok()) return s;
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
    if (!s.ok()) return s;
    return gpu;
  }
  return Status(Code::kNotFound,
                "the executor sees no GPU " + cuda::UuidText(uuid) +
                    " among its " + std::to_string(count) +
                    "; CUDA_VISIBLE_DEVICES of the agent may hide it");
}

}  // namespace

StatusOr<uint32_t> GpuQueues::Find(const uint8_t (&uuid)[16]) {
  const cuda::Driver* driver = nullptr;
  if (const Status s = cuda::LoadDriver(&driver); !s.ok()) return s;
  CUuuid wanted = {};
  std::memcpy(wanted.bytes, uuid, sizeof(wanted.bytes));
  const StatusOr<const Gpu*> gpu = FindGpu(*driver, wanted);
  if (!gpu.ok()) return gpu.status();
  const auto number = static_cast<uint32_t>((*gpu)->ordinal());
  if (Has(number)) return number;
  if (number >= kMaxGpus) {
    return Status(Code::kResourceExhausted, "only the first " +
                                                std::to_string(kMaxGpus) +
                                                " GPUs of a node can be used");
  }
  StatusOr<std::unique_ptr<GpuQueue>> queue = GpuQueue::Make(**gpu);
  if (!queue.ok()) return queue.status();
  queues_.emplace(number, *std::move(queue));
  return number;
}

bool GpuQueues::Poll() {
  bool changed = false;
  for (const auto& [gpu, queue] : queues_) changed |= queue->Poll();
  return changed;
}

bool GpuQueues::full() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const auto& q) { return q.second->full(); });
}

bool GpuQueues::idle() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& q) { return q.second->idle(); });
}

}  // namespace maypole
