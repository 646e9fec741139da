// RankGpuRuns: the runs that this rank's own GPU executes, together with those
// of other ranks (RunSite::kRanks).
//
// Purpose: such a run is passed on when its ticket is taken
// (StagedTensor::BeginOnRank). For this rank it ends when its part is on its
// GPU's stream; no rank commits it for others. It is watched until it ends on
// the GPU: if it fails there, the job must end.
//
// Thread contract: not synchronized, the progress engine's; any(): any thread.
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
  // just come there.
  bool Advance(Run& run);
  // The run has ended for the user: its results are on the GPU, or will be.
  void OnEnded(const Run& run);

  enum class AfterAbort { kWaits, kEnded, kFailed };
  // Waits until this rank's GPU writes to its tensors no more, but not for one
  // that is stuck: then their contents are undefined for longer.
  AfterAbort PollAborted(const Run& run) const;

  // Looks at the runs that have ended for the user: the GPU or NCCL may still
  // fail, and then the other ranks' GPUs wait for this one's for ever.
  void Watch();
  // Some of them are on the GPU's stream.
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
