// GpuLoads: memory and load of GPUs, as nvidia-smi shows them.
//
// Purpose: shows an operator whether a job's GPUs are busy. The figures come
// from NVML, libnvidia-ml.so.1, which is opened when they are first requested;
// without NVML there are none. (https://docs.nvidia.com/deploy/nvml-api/)
//
//   GpuLoads loads;
//   loads.Look({uuid});          // none yet
//   ...a second later...
//   for (const GpuLoads::Load& load : loads.Look({uuid})) ...
//
// Thread contract: one thread calls; a call does not wait. A thread of this
// class calls NVML, which blocks if a GPU hangs.
//
// Invariants: Look() returns the newest answer that NVML has given. The thread
// ends with the object, or later when NVML answers again.
#ifndef MAYPOLE_WORKER_EXECUTOR_GPU_LOADS_H_
#define MAYPOLE_WORKER_EXECUTOR_GPU_LOADS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

class GpuLoads {
 public:
  struct Load {
    GpuUuid uuid{};
    uint64_t used_bytes = 0;
    uint64_t total_bytes = 0;
    // Over the last sample period, which is between 1/6 s and 1 s; none if NVML
    // does not report it, as for a MIG instance.
    std::optional<uint32_t> busy_percent;
  };

  explicit GpuLoads(std::string library = "libnvidia-ml.so.1");
  ~GpuLoads();

  // Returns the loads of those GPUs that NVML knows. No thread runs before the
  // first call that names a GPU.
  std::vector<Load> Look(const std::vector<GpuUuid>& gpus);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  // Shared with the thread, which outlives this object if a GPU hangs.
  const std::shared_ptr<State> state_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_GPU_LOADS_H_
