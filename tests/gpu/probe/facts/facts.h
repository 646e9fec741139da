// The eight facts: one function each, in a file of its own (docs/gpu-facts.md
// has their purposes). Each function adds all its rows to the lab's report,
// also those that could not be measured. Its Add...Roles() adds its roles to
// the table of Roles().
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_FACTS_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_FACTS_H_

#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

struct Fact {
  int number;
  const char* title;
  void (*measure)(Lab& lab);
};

// 1. Do kernels of two processes on one GPU overlap?
void KernelsOfTwoProcesses(Lab& lab);
// 2. Do copies by copy engine run beside a kernel of another process?
void CopiesBesideAKernel(Lab& lab);
// 3. How long does a hand-over between processes take?
void HandOver(Lab& lab);
// 4. Memory exported as a descriptor, and the death of either side.
void ExportedMemory(Lab& lab);
// 5. The rate of a reduction over the buffers of k other processes.
void ReduceOfOthers(Lab& lab);
// 6. A stream that waits for a process that was killed.
void WaitForTheDead(Lab& lab);
// 7. Two processes of one GPU in one NCCL communicator.
void NcclOnOneGpu(Lab& lab);
// 8. Do many waiting streams block kernels that would release them?
void ManyWaits(Lab& lab);

// All facts in the order of measurement: the most decisive first; last those
// that kill processes in the middle of their work, which might harm the state
// of the GPU or of MPS.
const std::vector<Fact>& Facts();

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_FACTS_H_
