// What an exchange between nodes costs, and which levels cost least.
//
// Purpose: chooses the levels of a reduction (exchange_plan.h) by its size and
// number of nodes, from what the links cost (link_probe.h). The model is LogGP
// (Alexandrov, Ionescu, Schauser, Scheiman, 1995) with a term for the
// reduction: a message takes `latency`, keeps its node busy for `message`, and
// takes `wire` for its bytes; reducing takes `reduce` for the bytes it reads.
//
//   ExchangeModel model(costs, max_levels);
//   plan = PlanFor(work, self, model.LevelsFor(8, 4096, false));
//
// All nodes of a chunk must come to the same choice, so they have the same
// costs, and only whole numbers are used.
//
// Thread contract: one thread at a time.
#ifndef MAYPOLE_WORKER_BACKEND_EXCHANGE_MODEL_H_
#define MAYPOLE_WORKER_BACKEND_EXCHANGE_MODEL_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "worker/backend/exchange_plan.h"

namespace maypole::worker {

inline constexpr uint32_t kMaxLevels = 4;

// Nanoseconds; `wire` and `reduce` for a MiB.
struct LinkCosts {
  uint64_t latency = 0;
  uint64_t message = 0;
  uint64_t wire = 0;
  uint64_t reduce = 0;

  bool operator==(const LinkCosts&) const = default;
};

class ExchangeModel {
 public:
  // `max_levels`: at least 1, at most kMaxLevels.
  ExchangeModel(const LinkCosts& costs, uint32_t max_levels);

  // For a chunk of `bytes` bytes, which are rounded up to a power of two. A
  // further level must save a tenth: it may change the bits of sums.
  // `streams`: see Work; then latency does not count, and no level exchanges
  // all: it would reduce everything more than once, for nothing.
  const std::vector<Level>& LevelsFor(uint32_t nodes, uint64_t bytes,
                                      bool streams);

  // Nanoseconds that a reduction takes.
  uint64_t CostOf(const std::vector<Level>& levels, uint64_t bytes,
                  bool streams) const;

 private:
  const LinkCosts costs_;
  const uint32_t max_levels_;
  std::map<std::tuple<uint32_t, uint64_t, bool>, std::vector<Level>> chosen_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_EXCHANGE_MODEL_H_
