// GpuMemoryOptions: how a rank shares GPU memory with the executor of its node.
//
// Thread contract: a value.
#ifndef MAYPOLE_CLIENT_GPU_GPU_MEMORY_OPTIONS_H_
#define MAYPOLE_CLIENT_GPU_GPU_MEMORY_OPTIONS_H_

#include <cstdint>

namespace maypole {

enum class GpuMemoryMode : uint8_t {
  kAuto,        // by descriptor; if that fails, by IPC handle; else not at all
  kDescriptor,  // the rank's memory (session::GpuSharing::kDescriptor)
  kIpcHandle,   // the executor's memory (session::GpuSharing::kIpcHandle)
  kNone,        // not at all: tensors are copied through host memory
  kOwn,         // not at all: the rank calls NCCL itself (GpuSharing::kOwn)
};

struct GpuMemoryOptions {
  GpuMemoryMode mode = GpuMemoryMode::kAuto;
  // Most bytes on each GPU; -1: an eighth of the GPU's memory.
  int64_t limit = -1;
  // Operations of up to this many bytes go through host memory; kByDevice:
  // those for which that is faster (staging.h).
  static constexpr int64_t kByDevice = -1;
  int64_t host_bytes = 0;
  // The rank may call NCCL itself, if that is better than `mode`
  // (MAYPOLE_GPU_SITE=auto).
  bool chooses_site = false;
  bool tells_site = false;  // prints the choice for the user
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_GPU_MEMORY_OPTIONS_H_
