// GpuMemories: the memories that ranks share with their executor in an epoch.
//
// Purpose: opens them, finds the tensors in them, and releases them when the
// work on them has ended.
//
//   GpuMemories memories(&queues, on_opened);
//   memories.Open(id, request, std::move(descriptor));
//   StatusOr<uint64_t> address =
//       memories.AddressOf(tensor, tensor.offset, bytes);
//   memories.NoteUse(tensor);      // when work on it was enqueued
//   memories.Close(local);
//   memories.Release();            // what no work needs any more
//
// Thread contract: one thread uses it. No function waits for a GPU, except that
// memory allocated by the executor is freed when its GPU is idle.
//
// Invariants: memory is released when all work on it has ended. All must be
// released before the object is destroyed.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORIES_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "common/gpu/runner/gpu_memory.h"
#include "common/gpu/runner/gpu_queues.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

class GpuMemories {
 public:
  using OnOpened = std::function<void(GpuMemoryId, StatusOr<OpenedGpuMemory>)>;

  GpuMemories(GpuQueues* queues, OnOpened on_opened);
  GpuMemories(const GpuMemories&) = delete;
  GpuMemories& operator=(const GpuMemories&) = delete;

  // The GPUs' queues must not be full.
  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd descriptor);
  void Refuse(GpuMemoryId id, const Status& why);
  void Close(uint32_t local);
  void CloseAll();

  // Memory of this process on the GPU may be used by its addresses, as memory
  // with the number 0. on_opened() reports it as {0, 0}.
  void OpenOwn(const uint8_t (&uuid)[16]);

  // The address of `bytes` bytes at `offset` in the tensor's memory; 0 for no
  // bytes. An error unless the memory is open, is on the tensor's GPU and
  // contains them.
  StatusOr<uint64_t> AddressOf(const GpuTensor& tensor, uint64_t offset,
                               uint64_t bytes) const;
  // Notes that the last batch of the GPU's queue uses the tensor.
  void NoteUse(const GpuTensor& tensor);

  // Releases what no work needs. False if there was nothing to release.
  bool Release();
  // No memory waits to be released.
  bool idle() const { return closing_.empty(); }

 private:
  struct OpenMemory {
    uint32_t gpu;
    GpuMemory memory;
    uint64_t last_use;  // number of the queue's last batch on it
    uint64_t proof;     // number of the one that wrote the proof
  };

  Status TryOpen(GpuMemoryId id, const session::GpuMemoryRequest& request,
                 Fd descriptor);
  void OnProof(GpuMemoryId id, uint64_t number, const Status& status);

  GpuQueues& queues_;
  const OnOpened on_opened_;
  std::map<GpuMemoryId, OpenMemory> open_;
  std::vector<OpenMemory> closing_;
  std::set<uint32_t> own_;  // GPUs of OpenOwn()
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_MEMORIES_H_
