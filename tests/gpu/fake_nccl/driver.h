// The fake CUDA driver, as the fake NCCL uses it.
//
// Purpose: NCCL opens libcuda.so.1 itself, when it first needs it.
//
//   const Driver* driver = OpenDriver();   // null: there is none
//   driver->enqueue(&launch, &operation);
//
// Thread contract: any thread may call it.
//
// Invariants: another libcuda.so.1 than the fake one ends the process.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_DRIVER_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_DRIVER_H_

#include "tests/gpu/fake/library_hook.h"

namespace maypole::nccl::fake {

struct Driver {
  decltype(&cuda::fake::fakeCudaCurrent) current;
  decltype(&cuda::fake::fakeCudaEnqueue) enqueue;
  decltype(&cuda::fake::fakeCudaWait) wait;
  decltype(&cuda::fake::fakeCudaForget) forget;
};

const Driver* OpenDriver();

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_DRIVER_H_
