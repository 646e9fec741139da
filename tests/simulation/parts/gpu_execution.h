// ExecuteOnGpus: executes an operation as the GPUs of one or several executors
// do.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_GPU_EXECUTION_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_GPU_EXECUTION_H_

#include <cstddef>
#include <vector>

#include "common/gpu/runner/gpu_run.h"
#include "tests/simulation/stage.h"

namespace maypole::simulation {

// Memory of one of an operation's tensors, from where it begins.
struct TensorMemory {
  std::vector<std::byte>* memory = nullptr;
  uint64_t offset = 0;
  uint64_t result = kInPlace;
};

// An executor's part of an operation: its tensors are operation->tensors.
struct NodePart {
  const GpuOperation* operation = nullptr;
  std::vector<TensorMemory> tensors;
};

// Executes what GpuOperation promises. Reports parts that do not belong
// together, and accesses outside of the memories.
void ExecuteOnGpus(Stage* stage, const std::vector<NodePart>& parts);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_GPU_EXECUTION_H_
