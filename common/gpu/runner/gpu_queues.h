// GpuQueues: the queues of an epoch's GPUs, numbered as the driver numbers GPUs
// in this process. (So ranks that take GPUs in the order of their local ranks
// are also in NCCL's order, and an allgather is one call; see make_steps.cc.)
//
//   GpuQueues queues;
//   StatusOr<uint32_t> gpu = queues.Find(request.uuid);
//   queues[*gpu].Reduce(...);
//   while (!queues.idle()) queues.Poll();
//
// Thread contract: one thread uses it.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUES_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUES_H_

#include <cstdint>
#include <map>
#include <memory>

#include "common/gpu/runner/gpu_queue.h"
#include "common/status_or.h"

namespace maypole {

class GpuQueues {
 public:
  // The number of the GPU with this UUID. Opens the driver, and the GPU's
  // queue, if it is used for the first time.
  StatusOr<uint32_t> Find(const uint8_t (&uuid)[16]);

  bool Has(uint32_t gpu) const { return queues_.contains(gpu); }
  GpuQueue& operator[](uint32_t gpu) { return *queues_.at(gpu); }
  const GpuQueue& operator[](uint32_t gpu) const { return *queues_.at(gpu); }

  // GpuQueue::Poll(), full() and idle() of any, any and all.
  bool Poll();
  bool full() const;
  bool idle() const;

 private:
  std::map<uint32_t, std::unique_ptr<GpuQueue>> queues_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUES_H_
