// ChooseWaitPolicy: how a rank that finds nothing to do should wait. It depends
// on the cores that its process may really use (common/system/cores.h). Where a
// quota limits the CPU time, spinning takes it from the next computation.
//
//   const WaitPolicy w = ChooseWaitPolicy(
//       AffinityCores(), CpuQuota(ReadFilesUnder("/")), 2, 1);
//
// Thread contract: pure functions.
#ifndef MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_
#define MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_

#include <chrono>
#include <cstdint>

#include "common/system/cores.h"

namespace maypole {

struct WaitPolicy {
  // Calls sched_yield() each time it finds nothing to do.
  bool yields = false;
  // How long it spins before it sleeps.
  std::chrono::microseconds spin{0};
};

WaitPolicy ChooseWaitPolicy(uint32_t affinity, double quota,
                            uint32_t local_size, uint32_t nodes);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_
