// WaitPolicy: how a rank that finds nothing to do waits: it spins, yields its
// core, or sleeps. The choice depends on the cores that its process may
// actually use (common/system/cores.h), and on whether a rank that it waits for
// was last seen on its own core (client/session/core_hints.h). Where a quota
// limits the CPU time, spinning takes it from the next computation.
//
//   const WaitPolicy w = ChooseWaitPolicy(
//       AffinityCores(), CpuQuota(ReadFilesUnder("/")), 2, 1);
//   switch (w.Next(idle, peer_on_my_core)) {
//     case Pause::kSpin: ...
//
// Thread contract: pure functions.
#ifndef MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_
#define MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_

#include <chrono>
#include <cstdint>

#include "common/system/cores.h"

namespace maypole {

enum class Pause { kSpin, kYield, kSleep };

struct WaitPolicy {
  // Calls sched_yield() each time it finds nothing to do.
  bool yields = false;
  // How long it spins or yields before it sleeps.
  std::chrono::microseconds spin{0};

  // What a thread that has found nothing to do for `idle` does next.
  // peer_on_my_core: a rank that it waits for was last seen on the thread's
  // core.
  Pause Next(std::chrono::nanoseconds idle, bool peer_on_my_core) const;
};

WaitPolicy ChooseWaitPolicy(uint32_t affinity, double quota,
                            uint32_t local_size, uint32_t nodes);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_WAIT_POLICY_H_
