// GpuRuns: operations whose tensors are on GPUs.
//
// Purpose: decides where such an operation runs: on one GPU; on several, where
// either this executor or the ranks themselves call NCCL; or on the host. Also
// handles its end.
//
// A rank that calls NCCL itself announces its GPU (session::GpuSharing::kOwn).
// If all local members of a process set have submitted tensors on such GPUs,
// and no two on the same GPU, the operation becomes a run of the ranks: its
// plan names a communicator, which belongs to the process set and its members'
// GPUs. Tickets fix the order, so all ranks call NCCL in the same order. Over
// several nodes the plan of an allgather or alltoall also has the sizes of all
// members' tensors.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error means that the epoch cannot continue.
#ifndef MAYPOLE_WORKER_CORE_GPUS_GPU_RUNS_H_
#define MAYPOLE_WORKER_CORE_GPUS_GPU_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/gpu/runner/gpu_run.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/gpus/gpu_communicators.h"
#include "worker/core/gpus/rank_gpu_memories.h"
#include "worker/core/left_ranks.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/runs.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class GpuRuns {
 public:
  // All must outlive this object.
  GpuRuns(const EpochInfo& info, const JobNccl& nccl, const LeftRanks& left,
          const RankGpuMemories& memories, GpuCommunicators* communicators,
          SlotTable* slots, RunQueue* runs, EpochOutput* output)
      : info_(info),
        nccl_(nccl),
        left_(left),
        memories_(memories),
        communicators_(*communicators),
        slots_(*slots),
        runs_(*runs),
        output_(*output) {}

  // For an operation over several nodes: sets where the local members' tensors
  // are, and the room for their results.
  absl::Status TakeTensors(const ReadySlot& ready, SlotEntry* entry) const;
  // An operation of this node alone.
  absl::Status OnReady(const ReadySlot& ready, SlotEntry* entry);
  // A run that the coordinator has ordered, with a communicator.
  absl::Status Run(const proto::Run& run);
  // The result of RunOnGpus.
  absl::Status OnEnded(const GpuRun& run, const absl::Status& status);
  // A run has failed.
  bool failed() const { return failed_; }

 private:
  absl::Status ReadTensors(const ReadySlot& ready, SlotEntry* entry) const;
  absl::Status RunOnLocalGpus(uint32_t slot, const SlotEntry& entry,
                              const std::vector<int64_t>& rows);
  absl::Status RunOnLocalRanks(uint32_t slot, const SlotEntry& entry);
  absl::Status RunOnRanks(const proto::Run& run,
                          const GpuCommunicators::OfRanks& communicator);
  void Begin(GpuRun run);
  void FailForDeparture(uint32_t slot, uint32_t generation, int rank,
                        absl::string_view detail = "");

  const EpochInfo& info_;
  const JobNccl& nccl_;
  const LeftRanks& left_;
  const RankGpuMemories& memories_;
  GpuCommunicators& communicators_;
  SlotTable& slots_;
  RunQueue& runs_;
  EpochOutput& output_;
  bool failed_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_GPUS_GPU_RUNS_H_
