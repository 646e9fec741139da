// GpuLoads: memory and load of GPUs, as nvidia-smi shows them.
//
// Purpose: an operator who looks at a job sees whether its GPUs are busy. The
// figures come from NVML, libnvidia-ml.so.1, which is opened when somebody
// looks for the first time; without it there are none.
// (https://docs.nvidia.com/deploy/nvml-api/)
//
//   GpuLoads loads;
//   loads.Look({uuid});          // none yet
//   ...a second later...
//   for (const GpuLoads::Load& load : loads.Look({uuid})) ...
//
// Thread contract: one thread calls; a call does not wait. NVML is asked by a
// thread of its own, because it waits for a GPU that hangs.
//
// Invariants: a result is that of the last call whose answer has come. The
// thread ends with the object, or when NVML answers again.
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
    // Of the last sample period, which is between 1/6 s and 1 s; none: NVML
    // does not tell, as of an instance of MIG.
    std::optional<uint32_t> busy_percent;
  };

  explicit GpuLoads(std::string library = "libnvidia-ml.so.1");
  ~GpuLoads();

  // Those of these GPUs that NVML knows. No thread runs before the first call
  // that names one.
  std::vector<Load> Look(const std::vector<GpuUuid>& gpus);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  // The thread has it, too, and outlives this object if a GPU hangs.
  const std::shared_ptr<State> state_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_GPU_LOADS_H_
