// GpuWork: what an epoch does on the GPUs of its node: the memories that ranks
// share, the runs there, and the callbacks at their end.
//
// Purpose: GpuRunner without its thread. It joins the parts:
//
//   GpuQueues       the GPUs' streams
//   GpuMemories     the ranks' memories
//   Communicators   groups of GPUs (NCCL)
//   CollectiveRuns  runs that have a communicator
//   RunEnds         runs that have begun
//
//   GpuWork work(callbacks, nccl_library, timeouts);
//   work.Open(id, request, std::move(descriptor));
//   work.Poll();                             // again and again: on_opened(...)
//   work.Run(run);                           // if it is not full()
//   work.Abort();
//   work.CloseAll();                         // and Poll() until idle()
//
// Thread contract: one thread uses it. No function waits for a GPU, except that
// memory allocated by the executor is freed when its GPU is idle.
//
// Invariants: memory is released when all work on it has ended. After Abort()
// nothing more is enqueued, and all runs end within the time limit. It must be
// idle() when it is destroyed.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_WORK_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_WORK_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "common/gpu/runner/epoch_gpus.h"
#include "common/gpu/runner/gpu_memories.h"
#include "common/gpu/runner/gpu_queues.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/collective_runs.h"
#include "common/gpu/runner/nccl/communicators.h"
#include "common/gpu/runner/run_ends.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

class GpuWork {
 public:
  GpuWork(EpochGpus::Callbacks callbacks, std::string nccl_library,
          NcclTimeouts timeouts);
  GpuWork(const GpuWork&) = delete;
  GpuWork& operator=(const GpuWork&) = delete;

  // See EpochGpus.
  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd descriptor);
  // See GpuRunner.
  void OpenOwn(const uint8_t (&uuid)[16]);
  void Close(uint32_t local) { memories_.Close(local); }
  void CloseAll() { memories_.CloseAll(); }
  void MakeCommunicatorId(uint32_t number);
  void Connect(GpuCommunicator communicator, const std::string& id);
  void Run(GpuRun run);
  void Abort();

  // Makes the callbacks for what has ended, and releases memory. False if
  // nothing has changed.
  bool Poll();

  // True if a GPU has as much work as it may have, or NCCL is enqueuing
  // something: then neither Open() nor Run() may be called.
  bool full() const;
  // True if no GPU has work, and nothing waits: no run, no memory to be
  // released, and no aborted communicator.
  bool idle() const;
  // NCCL has communicators.
  bool has_communicators() const { return !communicators_.gone(); }

 private:
  using Clock = std::chrono::steady_clock;

  void AbortWith(const Status& why);
  bool PollAbort();
  void RunAlone(const GpuRun& run);
  Status EnqueueAlone(const GpuOperation& operation, uint32_t gpu);

  const EpochGpus::Callbacks callbacks_;
  GpuQueues queues_;
  GpuMemories memories_;
  RunEnds ends_;
  Communicators communicators_;
  CollectiveRuns collectives_;

  Status abort_;  // why; kOk: there was no Abort()
  Clock::time_point abort_deadline_;
  bool past_deadline_ = false;
  bool communicators_gone_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_WORK_H_
