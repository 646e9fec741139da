// Handles: maps the numbers that callers use as handles to the plugin's
// objects.
//
// Invariants: a number is never reused within a process, so a handle of another
// Gpu, or of a destroyed object, is unknown and never denotes another object.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_HANDLES_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "worker/backend/gpu/plugin/failure.h"

namespace maypole::gpu::plugin {

inline std::atomic<uint64_t> last_handle{0};

template <typename T>
class Handles {
 public:
  // `what`, for example "stream", names the objects in error texts.
  explicit Handles(const char* what) : what_(what) {}

  uint64_t Add(const T& object) {
    const uint64_t handle = ++last_handle;
    std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(handle, object);
    return handle;
  }
  T Get(uint64_t handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) throw Unknown(handle);
    return found->second;
  }
  // Returns the object and removes it.
  T Take(uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) throw Unknown(handle);
    const T object = found->second;
    objects_.erase(found);
    return object;
  }

 private:
  Failure Unknown(uint64_t handle) const {
    return InvalidArgument(std::string("there is no ") + what_ + " " +
                           std::to_string(handle) +
                           " (was it destroyed, or is it another GPU's?)");
  }

  const char* const what_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, T> objects_;
};

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_HANDLES_H_
