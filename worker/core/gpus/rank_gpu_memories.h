// RankGpuMemories: the GPU memory that this node's ranks share with their
// executor, and the GPUs of ranks that call NCCL themselves.
//
// Purpose: checks the ranks' requests, has memory opened, numbers the own GPUs
// of ranks (session::GpuSharing::kOwn), and tells the coordinator which rank
// uses which GPU.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariant: a rank's requests count from 1 without gaps.
#ifndef MAYPOLE_WORKER_CORE_GPUS_RANK_GPU_MEMORIES_H_
#define MAYPOLE_WORKER_CORE_GPUS_RANK_GPU_MEMORIES_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"
#include "worker/core/epoch_output.h"
#include "worker/core/membership.h"

namespace maypole::worker {

// The NCCL version that all nodes of the job have.
struct JobNccl {
  // Operations may run on several GPUs.
  bool enabled = false;
  uint32_t version = 0;
  uint64_t host = 0;  // proto::RankGpu.nccl_host
};

class RankGpuMemories {
 public:
  struct Memory {
    ClientId client = 0;
    int rank = 0;
    uint64_t bytes = 0;
    std::string uuid;  // of its GPU, 16 bytes
    bool open = false;
    uint32_t gpu = 0;
    bool own = false;  // GpuSharing::kOwn
  };

  // Both must outlive this object.
  RankGpuMemories(const JobNccl& nccl, EpochOutput* output)
      : nccl_(nccl), output_(*output) {}

  // Returns an error if the rank has broken the protocol.
  absl::Status OnRequest(const LocalMember& member,
                         const session::GpuMemoryRequest& request);
  // The result of OpenGpuMemory.
  void OnOpened(GpuMemoryId id, const absl::StatusOr<OpenedGpuMemory>& opened);
  // The rank has left.
  void Forget(uint32_t local);
  // Reports the open memories to a coordinator that has replaced another.
  void OnRecovered();

  // Returns null if the memory is not open.
  const Memory* FindOpen(GpuMemoryId id) const;
  // Returns the client of a rank that has requested memory and has not left.
  std::optional<ClientId> ClientOf(uint32_t local) const;
  // True if a tensor is on the GPU of a rank that calls NCCL itself.
  bool AnyIsOwn(const std::vector<GpuTensor>& tensors) const;
  // True if all are, and on different GPUs.
  bool RanksCanRun(const std::vector<GpuTensor>& tensors) const;

 private:
  using Uuid = std::array<uint8_t, 16>;

  // Returns the number of a rank's own GPU, if ranks may use it.
  absl::StatusOr<OpenedGpuMemory> OwnGpu(
      const LocalMember& member, const session::GpuMemoryRequest& request);
  // Tells the coordinator that the rank uses the GPU of this memory.
  void Report(uint32_t local, const Memory& memory);
  // "; shared there: 64 MiB of rank 0, 128 MiB of rank 1"; or empty.
  std::string SharesText(const std::string& uuid) const;
  bool IsOwn(const GpuTensor& tensor) const {
    return memories_.at(tensor.memory).own;
  }

  const JobNccl& nccl_;
  EpochOutput& output_;
  std::map<uint32_t, uint32_t> requests_;  // last number, by local rank
  std::map<GpuMemoryId, Memory> memories_;
  std::map<Uuid, uint32_t> own_gpus_;  // numbers
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_GPUS_RANK_GPU_MEMORIES_H_
