// GpuRunner: the GPUs of one epoch and the thread that drives them.
//
// Purpose: implements EpochGpus with the CUDA driver. The thread is started,
// and the driver opened, by the first Open(): a job without GPUs has neither.
//
//   Open()      finds the GPU by its UUID, maps the memory (or allocates it),
//               has the GPU write the proof there          -> on_opened
//   Reduce()    one kernel on the GPU's stream, and an event after it;
//               when the event is done                     -> on_reduced
//   Close()     the memory is unmapped when the kernels on it have ended
//
// A GPU is asked by queries, never waited for: the thread spins for a moment,
// then naps between the queries; it sleeps while nothing runs.
//
// Thread contract: one thread calls the methods, none of which waits for the
// GPU or the driver. The callbacks come from the runner's thread (or from
// within a method, if the thread cannot be started); they must return at once,
// and not destroy the object.
//
// Invariants: callbacks of one GPU's reductions come in the order of Reduce(),
// except that one that cannot be launched is reported at once. No callback
// begins after the destructor has begun. The destructor waits at most kMostWait
// for the GPUs; what they have not ended then, the thread waits for alone, so
// memory that a GPU may still use stays mapped, even after the object is gone.
#ifndef MAYPOLE_WORKER_GPU_GPU_RUNNER_H_
#define MAYPOLE_WORKER_GPU_GPU_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "worker/core/operations/gpu_reduction.h"
#include "worker/executor/executor_system.h"

namespace maypole::worker {

class GpuRunner : public EpochGpus {
 public:
  static constexpr std::chrono::milliseconds kMostWait{1000};

  explicit GpuRunner(Callbacks callbacks);
  ~GpuRunner() override;

  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd memory) override;
  void Close(uint32_t local) override;
  void Reduce(GpuReduction reduction) override;

 private:
  struct OpenCommand {
    GpuMemoryId id;
    session::GpuMemoryRequest request;
    Fd descriptor;
  };
  struct CloseCommand {
    uint32_t local;
  };
  using Command = std::variant<OpenCommand, CloseCommand, GpuReduction>;
  class Gate;
  class Thread;

  void Post(Command command);

  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<Thread> state_;  // the thread has it, too
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_GPU_RUNNER_H_
