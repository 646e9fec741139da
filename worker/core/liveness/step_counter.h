// StepCounter: estimates how many steps a job has made, as this node sees it.
//
// Purpose: Maypole knows no steps, only operations with names; but each
// training step submits the same names as the one before. So the number of
// steps between two calls is the number of generations by which the names that
// were used have advanced. The median counts, because some names occur once in
// many steps, or several times in one.
//
//   StepCounter steps;
//   total += steps.Count(snapshot.generations);
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_STEP_COUNTER_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_STEP_COUNTER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace maypole::worker {

class StepCounter {
 public:
  // generations: by slot, the newest that a rank has submitted; 0: none.
  uint64_t Count(const std::vector<uint32_t>& generations) {
    std::vector<uint32_t> advances;
    last_.resize(std::max(last_.size(), generations.size()), 0);
    for (size_t slot = 0; slot < generations.size(); ++slot) {
      if (generations[slot] > last_[slot]) {
        advances.push_back(generations[slot] - last_[slot]);
      }
      last_[slot] = generations[slot];
    }
    if (advances.empty()) return 0;
    const auto middle = advances.begin() + (advances.size() - 1) / 2;
    std::nth_element(advances.begin(), middle, advances.end());
    return *middle;
  }

 private:
  std::vector<uint32_t> last_;  // by slot
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_STEP_COUNTER_H_
