#include "worker/executor/gpu_loads.h"

#include <dlfcn.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "common/gpu/uuid.h"

namespace maypole::worker {
namespace {

constexpr int kNvmlSuccess = 0;

// As NVML declares them.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct NvmlUtilization {
  unsigned gpu;  // percent of the time in which a kernel ran
  unsigned memory;
};
using NvmlDevice = void*;

// The functions of NVML that are called. The library stays loaded.
class Nvml {
 public:
  // Returns false if this machine has no NVML.
  bool Open(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    int (*init)() = nullptr;
    return Find(handle, "nvmlInit_v2", &init) &&
           Find(handle, "nvmlDeviceGetHandleByUUID", &by_uuid_) &&
           Find(handle, "nvmlDeviceGetMemoryInfo", &memory_) &&
           Find(handle, "nvmlDeviceGetUtilizationRates", &utilization_) &&
           init() == kNvmlSuccess;
  }

  std::optional<GpuLoads::Load> Ask(const GpuUuid& uuid) const {
    const NvmlDevice device = Find(uuid);
    NvmlMemory memory{};
    if (device == nullptr || memory_(device, &memory) != kNvmlSuccess) {
      return std::nullopt;
    }
    GpuLoads::Load load{uuid, memory.used, memory.total, std::nullopt};
    NvmlUtilization utilization{};
    if (utilization_(device, &utilization) == kNvmlSuccess) {
      load.busy_percent = utilization.gpu;
    }
    return load;
  }

 private:
  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }

  // CUDA reports a MIG instance's UUID like a GPU's; NVML's has another prefix.
  NvmlDevice Find(const GpuUuid& uuid) const {
    cuda::CUuuid bytes{};
    std::memcpy(bytes.bytes, uuid.data(), uuid.size());
    const std::string text = cuda::UuidText(bytes);
    NvmlDevice device = nullptr;
    for (const std::string& name : {text, "MIG" + text.substr(3)}) {
      if (by_uuid_(name.c_str(), &device) == kNvmlSuccess) return device;
    }
    return nullptr;
  }

  int (*by_uuid_)(const char*, NvmlDevice*) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization_)(NvmlDevice, NvmlUtilization*) = nullptr;
};

}  // namespace

struct GpuLoads::State {
  std::string library;
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false;
  bool ends = false;
  bool asked = false;
  std::vector<GpuUuid> gpus;
  std::vector<Load> loads;
};

GpuLoads::GpuLoads(std::string library) : state_(std::make_shared<State>()) {
  state_->library = std::move(library);
}

GpuLoads::~GpuLoads() {
  std::lock_guard lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
}

std::vector<GpuLoads::Load> GpuLoads::Look(const std::vector<GpuUuid>& gpus) {
  if (gpus.empty()) return {};
  std::lock_guard lock(state_->mutex);
  state_->gpus = gpus;
  state_->asked = true;
  if (!std::exchange(state_->started, true)) {
    std::thread([state = state_] { Run(state); }).detach();
  }
  state_->changed.notify_all();
  return state_->loads;
}

void GpuLoads::Run(const std::shared_ptr<State>& state) {
  Nvml nvml;
  if (!nvml.Open(state->library)) return;
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->asked || state->ends; });
    if (state->ends) return;
    state->asked = false;
    const std::vector<GpuUuid> gpus = state->gpus;
    lock.unlock();
    std::vector<Load> loads;
    for (const GpuUuid& gpu : gpus) {
      if (std::optional<Load> load = nvml.Ask(gpu)) loads.push_back(*load);
    }
    lock.lock();
    state->loads = std::move(loads);
  }
}

}  // namespace maypole::worker
