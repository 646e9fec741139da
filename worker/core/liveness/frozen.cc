#include "worker/core/liveness/frozen.h"

#include <algorithm>

#include "worker/core/limits.h"

namespace maypole::worker {

std::optional<uint32_t> FrozenRanks::Check(int64_t now_ms,
                                           const BoardSnapshot& snapshot) {
  if (timeout_ms_ == 0) return std::nullopt;
  // If much time has passed since the last snapshot, this process itself was
  // stopped, and perhaps all ranks with it (a suspended machine): count only
  // part of that time.
  const int64_t passed = std::min(now_ms - last_ms_, 2 * kBoardScanMs);
  last_ms_ = now_ms;
  std::optional<uint32_t> frozen;
  for (uint32_t i = 0; i < ranks_.size() && i < snapshot.ranks.size(); ++i) {
    Rank& rank = ranks_[i];
    const RankSnapshot& seen = snapshot.ranks[i];
    const bool holds = seen.here && seen.holds.has_value();
    const bool still = holds && rank.holds && rank.beat == seen.beat;
    rank = {holds, seen.beat, still ? rank.still_ms + passed : 0};
    if (rank.still_ms < timeout_ms_) continue;
    if (!frozen || rank.still_ms > ranks_[*frozen].still_ms) frozen = i;
  }
  return frozen;
}

uint64_t FrozenRanks::suspects() const {
  uint64_t ranks = 0;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].still_ms > 0 &&
        ranks_[i].still_ms + 2 * kBoardScanMs >= timeout_ms_) {
      ranks |= uint64_t{1} << i;
    }
  }
  return ranks;
}

}  // namespace maypole::worker
