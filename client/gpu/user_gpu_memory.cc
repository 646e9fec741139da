#include "client/gpu/user_gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace maypole {
namespace {

using cuda::CUdeviceptr;
using cuda::CurrentGpu;
using cuda::CUstream;
using cuda::Gpu;

struct Held {
  const Gpu* gpu = nullptr;
  std::shared_ptr<StagingPools> pools;
  std::weak_ptr<Staging> staging;
};

struct Registry {
  std::mutex mutex;
  std::map<CUdeviceptr, Held> held;
};

Registry& registry() {
  static auto& r = *new Registry;  // never destroyed: threads may outlive main
  return r;
}

// The process that has allocated; 0: none has. Read without the mutex, which
// fork() may have copied locked.
std::atomic<pid_t> owner{0};

// Records an event after all work that the stream has now.
Status RecordEvent(const Gpu& gpu, CUstream stream, cuda::CUevent* event) {
  const cuda::Driver& driver = gpu.driver();
  cuda::CUstreamCaptureStatus capture = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  Status s = gpu.Check(driver.cuStreamIsCapturing(stream, &capture),
                       "cuStreamIsCapturing");
  if (!s.ok()) return s;
  if (capture != cuda::CU_STREAM_CAPTURE_STATUS_NONE) {
    return Status(Code::kFailedPrecondition,
                  "a stream is capturing a CUDA graph, which may use the "
                  "memory whenever it is launched");
  }
  s = gpu.Check(driver.cuEventCreate(event, cuda::CU_EVENT_DISABLE_TIMING),
                "cuEventCreate");
  return s.ok()
             ? gpu.Check(driver.cuEventRecord(*event, stream), "cuEventRecord")
             : s;
}

}  // namespace

Status AllocateUserGpuMemory(const std::shared_ptr<Staging>& staging, int gpu,
                             uint64_t bytes, CUdeviceptr* memory) {
  const Gpu* device = nullptr;
  if (Status s = staging->OpenGpu(gpu, &device); !s.ok()) return s;
  bytes = std::max<uint64_t>(bytes, 1);
  staging->Reclaim();
  const CUdeviceptr address =
      staging->SharesMemory()
          ? staging->pools()->shared.Allocate(*device, bytes)
          : 0;
  if (address == 0) {
    return Status(
        Code::kResourceExhausted,
        "no " + std::to_string(bytes) + " bytes of " + device->uuid() + " (" +
            device->name() +
            ") can be shared with this node's executor: either there is no "
            "room (MAYPOLE_GPU_MEMORY_BYTES limits it), or this GPU's memory "
            "is not shared (an earlier line of this process says why)");
  }
  owner.store(getpid());
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  r.held[address] = {device, staging->pools(), staging};
  *memory = address;
  return Status();
}

Status FreeUserGpuMemory(CUdeviceptr memory,
                         std::span<const CUstream> streams) {
  if (memory == 0) return Status();
  const pid_t process = owner.load();
  if (process != 0 && process != getpid()) return Status();
  Held held;
  {
    Registry& r = registry();
    std::lock_guard lock(r.mutex);
    const auto it = r.held.find(memory);
    if (it == r.held.end()) {
      return Status(Code::kInvalidArgument,
                    "maypole_free_on_gpu: this memory is not from "
                    "maypole_allocate_on_gpu(), or was freed already");
    }
    held = std::move(it->second);
    r.held.erase(it);
  }
  StagedResources freed;
  freed.device = held.gpu;
  freed.of_user = memory;
  Status s;
  {
    const CurrentGpu current(*held.gpu);
    s = current.status();
    for (const CUstream stream : streams) {
      cuda::CUevent event = nullptr;
      if (s.ok()) s = RecordEvent(*held.gpu, stream, &event);
      if (event != nullptr) freed.last_used.push_back(event);
    }
  }
  if (!s.ok()) {
    freed.of_user = 0;  // forever
    s = Status(Code::kFailedPrecondition,
               "maypole_free_on_gpu: the memory is never used "
               "again, because nothing tells when its streams are "
               "done with it: " +
                   s.message());
  }
  if (const auto staging = held.staging.lock(); staging != nullptr) {
    held.pools.reset();
    staging->Retire(freed);
  } else {
    FreeInBackground(std::move(held.pools), {freed});
  }
  return s;
}

}  // namespace maypole
