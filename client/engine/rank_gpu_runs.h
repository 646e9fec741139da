// RankGpuRuns: the runs that this rank's own GPU executes together with other
// ranks' GPUs (RunSite::kRanks).
//
// Purpose: such a run is passed on when its ticket is taken
// (StagedTensor::BeginOnRank). For this rank the run ends when its part is on
// this GPU's stream; no rank commits it for others. This class watches it until
// it ends on the GPU: if it fails there, the job must end.
//
// Thread contract: not synchronized, only the progress engine calls it; any():
// any thread.
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_GPU_RUNS_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_GPU_RUNS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/engine/run.h"
#include "client/engine/submitted_operations.h"
#include "common/board/board.h"

namespace maypole {

class RankGpuRuns {
 public:
  RankGpuRuns(const Board* board, uint32_t local_rank,
              SubmittedOperations* table)
      : board_(board), me_(local_rank), table_(table) {}

  void Begin(Run& run);
  // Sets run.ended when this rank's part is on its GPU's stream; true if it has
  // just been enqueued.
  bool Advance(Run& run);
  // The run has ended for the user: its results are on the GPU, or will be.
  void OnEnded(const Run& run);

  enum class AfterAbort { kWaits, kEnded, kFailed };
  // Reports whether this rank's GPU may still write to the tensors. After the
  // abort grace a GPU that is stuck counts as failed; it may still write.
  AfterAbort PollAborted(const Run& run) const;

  // Checks the runs that have ended for the user. If the GPU or NCCL fails
  // after all, this rank gives up, because the other ranks' GPUs would wait for
  // it forever.
  void Watch();
  // True if some runs are on the GPU's stream.
  bool any() const { return enqueued_count_.load() > 0; }

 private:
  struct EnqueuedRun {
    std::shared_ptr<RankRun> run;
    std::string title;  // of its first operation
    int64_t failed_at = 0;
  };

  bool AwaitCause(const Status& error, int64_t* failed_at);

  const Board* const board_;
  const uint32_t me_;
  SubmittedOperations* const table_;
  std::vector<EnqueuedRun> enqueued_;
  std::atomic<size_t> enqueued_count_{0};
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_GPU_RUNS_H_
