// GpuWork: what an epoch does on the GPUs of its node: the memories that ranks
// share, the reductions there, and who hears of their end.
//
// Purpose: GpuRunner without its thread.
//
//   GpuWork work(callbacks);
//   work.Open(id, request, std::move(descriptor));
//   work.Poll();                             // again and again: on_opened(...)
//   work.Reduce(reduction);                  // if it is not full()
//   work.CloseAll();                         // and Poll() until idle()
//
// Thread contract: one thread uses it. No function waits for a GPU, except that
// memory which the executor has allocated is freed when its GPU is idle.
//
// Invariants: memory is given back when all work on it has ended. It must be
// idle() when it is destroyed.
#ifndef MAYPOLE_WORKER_GPU_GPU_WORK_H_
#define MAYPOLE_WORKER_GPU_GPU_WORK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "worker/core/operations/gpu_reduction.h"
#include "worker/executor/executor_system.h"
#include "worker/gpu/gpu_memory.h"
#include "worker/gpu/gpu_queue.h"

namespace maypole::worker {

class GpuWork {
 public:
  explicit GpuWork(EpochGpus::Callbacks callbacks);
  GpuWork(const GpuWork&) = delete;
  GpuWork& operator=(const GpuWork&) = delete;

  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd descriptor);
  void Close(uint32_t local);
  void CloseAll();
  void Reduce(const GpuReduction& reduction);

  // Makes the callbacks for what has ended, and gives memory back. False if
  // nothing has changed.
  bool Poll();

  // A GPU has as much work as it may have: neither Open() nor Reduce() may be
  // called.
  bool full() const;
  // No GPU has work, and no memory waits to be given back.
  bool idle() const;

 private:
  struct OpenMemory {
    uint32_t gpu;  // number of its queue
    GpuMemory memory;
    uint64_t last_use;  // number of the queue's last work on it
    uint64_t proof;     // number of the one that wrote the proof
  };

  absl::Status TryOpen(GpuMemoryId id, const session::GpuMemoryRequest& request,
                       Fd descriptor);
  absl::StatusOr<uint32_t> QueueOf(const uint8_t (&uuid)[16]);
  void OnProof(GpuMemoryId id, uint64_t number, const absl::Status& status);
  absl::Status TryReduce(const GpuReduction& reduction);
  // The addresses of the reduction's tensors.
  absl::StatusOr<std::vector<uint64_t>> AddressesOf(
      const GpuReduction& reduction) const;
  bool Release();

  const EpochGpus::Callbacks callbacks_;
  std::vector<std::unique_ptr<GpuQueue>> queues_;  // by the GPU's number
  std::map<GpuMemoryId, OpenMemory> open_;
  std::vector<OpenMemory> closing_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_GPU_WORK_H_
