// GpuUse: counts, for the statistics page, what a job does on each GPU.
//
// Purpose: follows the core's actions: memory is opened (OpenGpuMemory, then
// the reply to the rank) and closed; operations begin (RunOnGpus) and succeed
// (CommitSlot, or IssueRun with their sizes). Also counts the times of runs
// (GpuRunTimes).
//
//   GpuUse use(&*stats);
//   use.OnAction(action, NowNs());     // before each action is executed
//   use.OnRunEnded(run);
//   use.OnEpochOver();
//
// Thread contract: one thread.
//
// Invariants: an entry of the page belongs to one GPU as long as the executor
// lives, even if epochs number the GPUs differently. Operations that fail are
// not counted.
#ifndef MAYPOLE_WORKER_EXECUTOR_GPU_USE_H_
#define MAYPOLE_WORKER_EXECUTOR_GPU_USE_H_

#include <cstdint>
#include <map>
#include <utility>

#include "worker/core/actions.h"
#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

class GpuUse {
 public:
  explicit GpuUse(StatsPage* page) : page_(*page) {}

  void OnAction(const Action& action, int64_t now_ns);
  // The GPUs have ended the run, with or without an error.
  void OnRunEnded(const GpuRun& run);
  // All memories of the epoch are closed.
  void OnEpochOver();

 private:
  struct Memory {
    uint32_t local = 0;  // the rank
    uint64_t bytes = 0;
    GpuUuid uuid = {};
    GpuStats* open_on = nullptr;  // null: not open
  };
  struct Operation {
    std::map<GpuStats*, uint64_t> bytes;  // of the tensors on each GPU
    int64_t begun_ns = 0;
  };

  void On(const OpenGpuMemory& a);
  void On(const ReplyClient& a);
  void On(const CloseGpuMemories& a);
  void CountSite(RunSite site, size_t operations);
  void Begin(const GpuOperation& operation, int64_t now_ns);
  void Commit(const CommitSlot& a, int64_t now_ns);
  GpuStats* EntryOf(const GpuUuid& uuid);

  StatsPage& page_;
  std::map<std::pair<ClientId, uint32_t>, Memory> memories_;  // by number
  std::map<uint32_t, GpuStats*> gpus_;  // by the epoch's number of the GPU
  std::map<std::pair<uint32_t, uint32_t>, Operation> operations_;  // by slot
                                                                   // and
                                                                   // generation
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_GPU_USE_H_
