#include "worker/core/liveness/local_stragglers.h"

#include <algorithm>
#include <utility>

#include "worker/core/limits.h"

namespace maypole::worker {

void LocalStragglers::Check(int64_t now_ms,
                            const std::vector<WaitingSlot>& waiting) {
  now_ms_ = now_ms;
  std::map<uint32_t, Since> slots;
  for (const WaitingSlot& w : waiting) {
    Since& s = slots[w.slot];
    s = {w, now_ms};
    const auto before = slots_.find(w.slot);
    if (before != slots_.end() &&
        before->second.slot.generation == w.generation) {
      s.since_ms = before->second.since_ms;
    }
  }
  slots_ = std::move(slots);
}

std::vector<LocalStragglers::Late> LocalStragglers::late() const {
  std::vector<Late> out;
  for (const auto& [slot, s] : slots_) {
    const int64_t waited = now_ms_ - s.since_ms;
    if (check_ms_ > 0 && waited >= check_ms_) out.push_back({s.slot, waited});
  }
  std::stable_sort(out.begin(), out.end(), [](const Late& a, const Late& b) {
    return a.waited_ms > b.waited_ms;
  });
  return out;
}

uint64_t LocalStragglers::suspects() const {
  uint64_t ranks = 0;
  for (const auto& [slot, s] : slots_) {
    // Two scans early, so that the scan that finds the operation late can say
    // whether the rank is stopped.
    if (check_ms_ > 0 && now_ms_ - s.since_ms + 2 * kBoardScanMs >= check_ms_) {
      ranks |= s.slot.missing;
    }
  }
  return ranks;
}

}  // namespace maypole::worker
