#include "worker/core/liveness/blocked.h"

#include <utility>

#include "common/board/board.h"

namespace maypole::worker {
namespace {

// Returns the local ranks that another rank can wait for forever. Ranks that
// have left do not count, since operations that wait for them fail; neither do
// ranks that stand aside, since they stand in for operations.
uint64_t Silent(const BoardSnapshot& snapshot) {
  uint64_t ranks = 0;
  for (uint32_t i = 0; i < snapshot.ranks.size(); ++i) {
    const RankSnapshot& rank = snapshot.ranks[i];
    if (rank.here && !rank.aside) ranks |= uint64_t{1} << i;
  }
  return ranks;
}

bool IsBlocked(const BoardSnapshot& snapshot, uint32_t local, uint64_t silent,
               const WaitJudge& judge) {
  const RankSnapshot& rank = snapshot.ranks[local];
  if (rank.blocked_count % 2 == 0) return false;
  if (rank.blocked_on == kBlockedInJoin) return judge.WaitsInJoin(local);
  if (rank.blocked_on == kBlockedForSet) return judge.WaitsForSet(local);
  if (!rank.undecided || !judge.IsSlot(ValueOf(rank.blocked_on))) return false;
  if (rank.missing != 0) return (rank.missing & ~silent) == 0;
  return judge.WaitsForOthers(ValueOf(rank.blocked_on), TagOf(rank.blocked_on));
}

}  // namespace

bool BlockedRanks::Check(const BoardSnapshot& snapshot,
                         const WaitJudge& judge) {
  std::vector<BlockedWait> waits;
  const uint64_t silent = Silent(snapshot);
  for (uint32_t i = 0; i < snapshot.ranks.size(); ++i) {
    const RankSnapshot& rank = snapshot.ranks[i];
    if (!rank.here) continue;
    if (!IsBlocked(snapshot, i, silent, judge)) {
      waits_.clear();
      return false;
    }
    waits.push_back({i, rank.blocked_on, rank.missing, rank.blocked_count});
  }
  const bool again = !waits.empty() && waits == waits_;
  waits_ = std::move(waits);
  return again;
}

}  // namespace maypole::worker
