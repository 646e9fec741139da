#include "client/session/wait_policy.h"

namespace maypole {
namespace {

// Longer than a wake-up takes: or one rank's sleep makes the next wait too long
// for its peers' budget, and from then on all sleep in turns.
constexpr std::chrono::microseconds kSpin{200};
// For waits that end by a kernel wake-up anyway (over several nodes), and where
// spinning eats what the ranks compute with (a quota).
constexpr std::chrono::microseconds kShortSpin{20};

}  // namespace

// Fewer cores than ranks: those that are waited for may need this one. Ranks
// that the launcher has bound to a core each look the same, for a mask says
// nothing about the others'; there sched_yield() finds nobody and returns, so
// it costs them nothing, and they keep the long budget. A quota does not say
// whose core it is, only how much is burnt: with less than a core for each rank
// the budget is short.
WaitPolicy ChooseWaitPolicy(uint32_t affinity, double quota,
                            uint32_t local_size, uint32_t nodes) {
  const bool scarce = quota < local_size;
  return {.yields = scarce || affinity < local_size,
          .spin = scarce || nodes > 1 ? kShortSpin : kSpin};
}

}  // namespace maypole
