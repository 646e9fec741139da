// GpuQueues: the queues of an epoch's GPUs, numbered as the executor numbers
// GPUs: in the order of their first use.
//
//   GpuQueues queues;
//   absl::StatusOr<uint32_t> gpu = queues.Find(request.uuid);
//   queues[*gpu].Reduce(...);
//   while (!queues.idle()) queues.Poll();
//
// Thread contract: one thread uses it.
#ifndef MAYPOLE_WORKER_GPU_GPU_QUEUES_H_
#define MAYPOLE_WORKER_GPU_GPU_QUEUES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/gpu/gpu_queue.h"

namespace maypole::worker {

class GpuQueues {
 public:
  // The number of the GPU with this UUID. Opens the driver, and the GPU's
  // queue, if it is used for the first time.
  absl::StatusOr<uint32_t> Find(const uint8_t (&uuid)[16]);

  uint32_t size() const { return static_cast<uint32_t>(queues_.size()); }
  GpuQueue& operator[](uint32_t gpu) { return *queues_[gpu]; }
  const GpuQueue& operator[](uint32_t gpu) const { return *queues_[gpu]; }

  // GpuQueue::Poll(), full() and idle() of any, any and all.
  bool Poll();
  bool full() const;
  bool idle() const;

 private:
  std::vector<std::unique_ptr<GpuQueue>> queues_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_GPU_QUEUES_H_
