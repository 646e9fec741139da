// GpuMemories: the memories that ranks share with their executor in an epoch.
//
// Purpose: opens them, finds the tensors in them, and gives them back when what
// runs on them has ended.
//
//   GpuMemories memories(&queues, on_opened);
//   memories.Open(id, request, std::move(descriptor));
//   absl::StatusOr<uint64_t> address = memories.AddressOf(tensor, bytes);
//   memories.NoteUse(tensor);      // when work on it was enqueued
//   memories.Close(local);
//   memories.Release();            // what no work needs any more
//
// Thread contract: one thread uses it. No function waits for a GPU, except that
// memory which the executor has allocated is freed when its GPU is idle.
//
// Invariants: memory is given back when all work on it has ended. All must be
// given back when it is destroyed.
#ifndef MAYPOLE_WORKER_GPU_GPU_MEMORIES_H_
#define MAYPOLE_WORKER_GPU_GPU_MEMORIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "worker/core/operations/gpu_run.h"
#include "worker/gpu/gpu_memory.h"
#include "worker/gpu/gpu_queues.h"

namespace maypole::worker {

class GpuMemories {
 public:
  using OnOpened =
      std::function<void(GpuMemoryId, absl::StatusOr<OpenedGpuMemory>)>;

  GpuMemories(GpuQueues* queues, OnOpened on_opened);
  GpuMemories(const GpuMemories&) = delete;
  GpuMemories& operator=(const GpuMemories&) = delete;

  // The GPUs' queues must not be full.
  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd descriptor);
  void Refuse(GpuMemoryId id, const absl::Status& why);
  void Close(uint32_t local);
  void CloseAll();

  // The address of a tensor of `bytes` bytes, which lies in an open memory of
  // its GPU.
  absl::StatusOr<uint64_t> AddressOf(const GpuTensor& tensor,
                                     uint64_t bytes) const;
  // The last batch of the GPU's queue uses the tensor.
  void NoteUse(const GpuTensor& tensor);

  // Gives back what can be. False if there is nothing.
  bool Release();
  // No memory waits to be given back.
  bool idle() const { return closing_.empty(); }

 private:
  struct OpenMemory {
    uint32_t gpu;
    GpuMemory memory;
    uint64_t last_use;  // number of the queue's last batch on it
    uint64_t proof;     // number of the one that wrote the proof
  };

  absl::Status TryOpen(GpuMemoryId id, const session::GpuMemoryRequest& request,
                       Fd descriptor);
  void OnProof(GpuMemoryId id, uint64_t number, const absl::Status& status);

  GpuQueues& queues_;
  const OnOpened on_opened_;
  std::map<GpuMemoryId, OpenMemory> open_;
  std::vector<OpenMemory> closing_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_GPU_MEMORIES_H_
