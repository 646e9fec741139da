// CollectiveRuns: the runs of an epoch that have a communicator.
//
// Purpose: they begin in the order of Add(), which is the same on all nodes, on
// all their GPUs:
//
//   waiting     until the communicator is connected, all runs before it have
//               been launched, and there is room on the GPUs. The first run of
//               a communicator waits until all before it have ended; then
//               connecting begins (see communicators.h)
//   launching   the kernels before NCCL are on the streams. NCCL's calls are
//               made, in one group for all operations and GPUs. NCCL's thread
//               puts them on the streams; nothing else is put there
//   running the kernels after NCCL are also on the streams; the run ends
//               when the events after them are done
//
//   CollectiveRuns runs(&queues, &memories, &communicators, &ends);
//   runs.Add(run);
//   runs.Poll();                          // again and again
//   if (!runs.error().ok()) { runs.Abort(runs.error()); ... }
//
// Thread contract: one thread uses it. No function waits.
//
// Invariants: at most one run is launching: a thread can have one unfinished
// NCCL group (before NCCL 2.27). No communicator connects while a collective
// runs on the GPUs of this node.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_RUNS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/gpu/runner/gpu_memories.h"
#include "common/gpu/runner/gpu_queues.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/collective_steps.h"
#include "common/gpu/runner/nccl/communicators.h"
#include "common/gpu/runner/run_ends.h"
#include "common/status.h"
#include "common/status_or.h"

namespace maypole {

class CollectiveRuns {
 public:
  CollectiveRuns(GpuQueues* queues, GpuMemories* memories,
                 Communicators* communicators, RunEnds* ends);
  CollectiveRuns(const CollectiveRuns&) = delete;
  CollectiveRuns& operator=(const CollectiveRuns&) = delete;

  void Add(GpuRun run);
  // False if nothing has changed.
  bool Poll();
  // The next run waits only for room on the GPUs.
  bool wants_room() const { return wants_room_; }

  // An error of NCCL or of a GPU: runs that have begun may never end, unless
  // the communicators are aborted.
  const Status& error() const { return error_; }
  // Waiting runs end with this error, and NCCL gets no further calls.
  void Abort(const Status& why);
  // NCCL has released the communicators.
  void NoteGone();

  bool idle() const { return waiting_.empty() && !launching_; }

 private:
  // What each GPU of the communicator does, in the order of operations.
  using Steps = std::vector<std::vector<CollectiveSteps>>;
  struct Launching {
    uint64_t id;  // in RunEnds
    CommunicatorPart* part;
    Steps steps;
  };
  struct Running {
    CommunicatorPart* part;
    size_t gpus;  // that have not ended
  };

  bool BeginNext();
  void Begin(const GpuRun& run, CommunicatorPart* part, Steps steps);
  Status EnqueueBefore(const Launching& l);
  Status Launch(const Launching& l);
  bool PollLaunching();
  bool PollRunning();
  void EnqueueAfter(const Launching& l);
  // Ends the batch of the run's GPU `i`, whose work so far has this status.
  void EndPart(const Launching& l, size_t i, const Status& status);
  void OnPartEnded(uint64_t id, const Status& status, const Status& of_gpu);
  StatusOr<Steps> StepsOf(const GpuRun& run,
                          const GpuCommunicator& communicator) const;
  GpuQueue& QueueOf(const Launching& l, size_t i) {
    return queues_[l.part->communicator().gpus[i]];
  }

  GpuQueues& queues_;
  GpuMemories& memories_;
  Communicators& communicators_;
  RunEnds& ends_;
  std::deque<GpuRun> waiting_;
  std::optional<Launching> launching_;
  std::map<uint64_t, Running> running_;
  bool wants_room_ = false;
  bool aborted_ = false;
  Status error_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_COLLECTIVE_RUNS_H_
