// EpochGpus: the interface through which an executor uses the GPUs of its node,
// and a rank of the GPU site `client` uses its own.
//
// Purpose: GpuRunner implements it with the CUDA driver and NCCL,
// tests/simulation with events. See worker/executor/executor_system.h.
//
// Thread contract: everything is called from the executor's loop. The callbacks
// come from any thread.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_EPOCH_GPUS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_EPOCH_GPUS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "common/gpu/runner/gpu_run.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

// The GPUs of one epoch: memory that ranks share with the executor, and the
// operations that run there. Runs with a communicator begin in the order of
// Run() on all their GPUs; so do runs of one GPU.
class EpochGpus {
 public:
  using Opened = OpenedGpuMemory;
  // Called from any thread.
  struct Callbacks {
    // The memory can be used, or the error says in one line why not.
    std::function<void(GpuMemoryId, StatusOr<Opened>)> on_opened;
    // The results are in the ranks' memory. After an error their contents are
    // undefined.
    std::function<void(const GpuRun&, Status)> on_ended;
    // All of the run is on the GPUs' streams, and the events of its tensors
    // have been recorded. Only for runs with a communicator. May be null.
    std::function<void(const GpuRun&)> on_enqueued = {};
    // NCCL's unique id of the communicator; opaque bytes.
    std::function<void(uint32_t number, StatusOr<std::string>)>
        on_communicator_id;
    // After Abort() NCCL does not release the communicators; only the end of
    // the process does. The argument says so in one line. The call may come
    // while the object is destroyed.
    std::function<void(std::string)> on_abort_stuck;
  };

  // Waits briefly for running operations, releases the memory, and stops
  // calling back. If a GPU does not end its work, its memory stays mapped until
  // the process ends.
  virtual ~EpochGpus() = default;
  // Makes the memory (an id that is not in use) usable for Run(). `memory` is
  // the descriptor that came with the request; invalid if there was none.
  virtual void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                    Fd memory) = 0;
  // Releases the rank's memories when the work on them has ended.
  virtual void Close(uint32_t local) = 0;
  // Makes the id with which all nodes connect this communicator.
  virtual void MakeCommunicatorId(uint32_t number) = 0;
  // The communicator is connected before the first run that uses it, when no
  // other run with a communicator is under way. Runs wait until it is
  // connected, and fail if it cannot be within a time limit.
  virtual void Connect(GpuCommunicator communicator, std::string id) = 0;
  // The memories must be open. The communicator, if the run has one, must be
  // passed to Connect() before or afterwards; its GPUs are those of the
  // tensors.
  virtual void Run(GpuRun run) = 0;
  // The epoch is over: ends all waits for other nodes' GPUs. Runs that have
  // not ended fail.
  virtual void Abort() = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_EPOCH_GPUS_H_
