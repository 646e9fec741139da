#include "worker/backend/exchange_model.h"

#include <bit>

namespace maypole::worker {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Calls `visit` with all ways to write `nodes` as at most `left` levels after
// `levels`. There are at most some thousand for the nodes of a job.
template <typename Visit>
void ForAllLevels(uint32_t nodes, uint32_t left, bool may_exchange_all,
                  std::vector<Level>& levels, const Visit& visit) {
  if (nodes == 1 && !levels.empty()) return visit(levels);
  if (left == 0) return;
  const bool all_only = !levels.empty() && levels.back().exchanges_all;
  for (uint32_t f = nodes == 1 ? 1 : 2; f <= nodes; ++f) {
    if (nodes % f != 0) continue;
    for (const bool exchanges_all : {false, true}) {
      if (exchanges_all ? !may_exchange_all : all_only) continue;
      levels.push_back({f, exchanges_all});
      ForAllLevels(nodes / f, left - 1, may_exchange_all, levels, visit);
      levels.pop_back();
    }
  }
}

}  // namespace

ExchangeModel::ExchangeModel(const LinkCosts& costs, uint32_t max_levels)
    : costs_(costs), max_levels_(max_levels) {}

uint64_t ExchangeModel::CostOf(const std::vector<Level>& levels, uint64_t bytes,
                               bool streams) const {
  const uint64_t latency = streams ? 0 : costs_.latency;
  uint64_t cost = 0;
  for (const Level& level : levels) {
    const uint64_t peers = level.nodes - 1;
    const uint64_t message = level.exchanges_all ? bytes : bytes / level.nodes;
    const uint64_t times = level.exchanges_all ? 1 : 2;
    cost += times * (latency + peers * costs_.message +
                     peers * message * costs_.wire / kMiB);
    cost += level.nodes * message * costs_.reduce / kMiB;
    bytes = message;
  }
  return cost;
}

const std::vector<Level>& ExchangeModel::LevelsFor(uint32_t nodes,
                                                   uint64_t bytes,
                                                   bool streams) {
  bytes = std::bit_ceil(bytes);
  const auto [it, is_new] = chosen_.try_emplace({nodes, bytes, streams});
  std::vector<Level>& best = it->second;
  if (!is_new) return best;
  uint64_t least = UINT64_MAX;
  for (uint32_t most = 1; most <= max_levels_; ++most) {
    uint64_t enough = least / 10 * 9;
    std::vector<Level> levels;
    ForAllLevels(nodes, most, !streams, levels,
                 [&](const std::vector<Level>& l) {
                   const uint64_t cost = CostOf(l, bytes, streams);
                   if (cost >= enough) return;
                   least = enough = cost;
                   best = l;
                 });
  }
  return best;
}

}  // namespace maypole::worker
