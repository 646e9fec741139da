#include "common/process_set.h"

#include <numeric>
#include <utility>

namespace maypole {

ProcessSet MakeProcessSet(const BoardConfig& config, uint32_t id,
                          std::vector<int> ranks) {
  ProcessSet set{id, std::move(ranks), {}};
  for (uint32_t i = 0; i < config.local_size; ++i) {
    if (set.Has(config.global_rank[i])) set.locals.push_back(i);
  }
  return set;
}

ProcessSet MakeGlobalSet(const BoardConfig& config) {
  std::vector<int> ranks(config.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return MakeProcessSet(config, 0, std::move(ranks));
}

}  // namespace maypole
