#include "client/session/wait_policy.h"

namespace maypole {
namespace {

// Longer than a wake-up takes. Otherwise one rank's sleep makes its peers' next
// wait exceed their budget, and from then on all sleep in turns.
constexpr std::chrono::microseconds kSpin{200};
// For waits that end with a kernel wake-up anyway (several nodes), and where
// spinning consumes CPU time that the ranks need to compute (a quota).
constexpr std::chrono::microseconds kShortSpin{20};
// After this time a waiter yields, even if there seem to be cores for all: a
// rank that the kernel has moved to the waiter's core, and that has not run
// there yet, still seems to be on another one.
constexpr std::chrono::microseconds kPoliteAfter{20};

}  // namespace

// A waiter that spins holds up a rank that shares its core, which happens when
// a third process uses another core. A waiter that yields to that process
// instead loses the core for a time slice, so without a peer here it spins.
Pause WaitPolicy::Next(std::chrono::nanoseconds idle,
                       bool peer_on_my_core) const {
  if (idle >= spin) return Pause::kSleep;
  if (yields || peer_on_my_core || idle > kPoliteAfter) return Pause::kYield;
  return Pause::kSpin;
}

// With fewer cores than ranks, the ranks that are waited for may need this
// core, so a waiter yields. Ranks that the launcher has bound to one core each
// look the same, because a rank's mask says nothing about the other ranks'. For
// them sched_yield() returns at once and costs nothing, so they keep the long
// budget. A quota limits the total CPU time: if it is less than a core for each
// rank, the budget is short.
WaitPolicy ChooseWaitPolicy(uint32_t affinity, double quota,
                            uint32_t local_size, uint32_t nodes) {
  const bool scarce = quota < local_size;
  return {.yields = scarce || affinity < local_size,
          .spin = scarce || nodes > 1 ? kShortSpin : kSpin};
}

}  // namespace maypole
