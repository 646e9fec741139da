// GpuCommunicators: NCCL's communicators of an epoch, as this node knows them.
//
// Purpose: the coordinator announces communicators over several nodes; this
// node makes its own when an operation first needs one. A communicator connects
// either GPUs, and then the executors call NCCL, or the ranks of a process set,
// each with its own GPU, and then the ranks call NCCL. The node of NCCL rank 0
// makes the id, which the coordinator passes on.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error means that the epoch cannot continue.
//
// Invariant: numbers up to kMaxCommunicators are the coordinator's.
#ifndef MAYPOLE_WORKER_CORE_GPUS_GPU_COMMUNICATORS_H_
#define MAYPOLE_WORKER_CORE_GPUS_GPU_COMMUNICATORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gpu/runner/gpu_run.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/gpus/rank_gpu_memories.h"
#include "worker/core/operations/sets.h"

namespace maypole::worker {

// The end of an error message of NCCL.
inline constexpr absl::string_view kNoNcclHint =
    " (MAYPOLE_NCCL_LIBRARY=none does without NCCL)";

class GpuCommunicators {
 public:
  // A communicator of ranks that call NCCL themselves.
  struct OfRanks {
    SharedSet set;
    std::vector<uint32_t> gpus;  // of the local members
  };

  // All must outlive this object.
  GpuCommunicators(const EpochInfo& info, const JobNccl& nccl,
                   const RankGpuMemories& memories, const SetTable& sets,
                   EpochOutput* output)
      : info_(info),
        nccl_(nccl),
        memories_(memories),
        sets_(sets),
        output_(*output) {}

  absl::Status OnCommunicator(const proto::Communicator& message);
  // The result of MakeCommunicatorId.
  absl::Status OnIdMade(uint32_t number, const absl::StatusOr<std::string>& id);
  absl::Status OnId(const proto::CommunicatorId& message);

  // Returns the communicator of these GPUs of this node: 0 if it is one GPU,
  // none if there are too many communicators.
  std::optional<uint32_t> Local(const std::vector<uint32_t>& gpus);
  std::optional<uint32_t> LocalOfRanks(const SharedSet& set,
                                       const std::vector<uint32_t>& gpus);
  // Returns null if it is unknown, or not a communicator of GPUs over several
  // nodes.
  const GpuCommunicator* Find(uint32_t number) const;
  // Returns null if it is unknown, or not a communicator of ranks. Also finds
  // communicators of this node alone.
  const OfRanks* FindOfRanks(uint32_t number) const;

  // For a coordinator that has replaced another.
  void FillState(proto::NodeState* state) const;
  void OnCoordinatorReplaced() { ids_in_state_ = ids_.size(); }
  void OnRecovered();

 private:
  absl::Status OnCommunicatorOfRanks(const proto::Communicator& message);
  std::optional<uint32_t> NextLocal() const;
  absl::Status Connect(uint32_t number, const std::string& id);
  void ConnectRanks(uint32_t number, const OfRanks& communicator,
                    const std::string& id);

  const EpochInfo& info_;
  const JobNccl& nccl_;
  const RankGpuMemories& memories_;
  const SetTable& sets_;
  EpochOutput& output_;
  std::map<uint32_t, GpuCommunicator> of_gpus_;  // by number
  std::map<uint32_t, OfRanks> of_ranks_;         // by number
  // Those of this node alone, by GPUs, or by process set and GPUs.
  std::map<std::vector<uint32_t>, uint32_t> local_;
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, uint32_t>
      local_of_ranks_;
  // Those over several nodes, for a coordinator that replaces this one.
  std::vector<proto::Communicator> announced_;
  std::map<uint32_t, proto::CommunicatorId> ids_;  // by number
  std::set<uint32_t> ids_received_;  // of ids_; the other ids were made here
  size_t ids_in_state_ = 0;  // of ids_, when the coordinator was replaced
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_GPUS_GPU_COMMUNICATORS_H_
