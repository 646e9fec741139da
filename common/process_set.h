// ProcessSet: the ranks that take part in an operation, as one node sees them.
//
// Thread contract: a value; constant once made.
//
// Invariants: `ranks` ascends and is not empty; `locals` ascends and holds the
// local rank of every member on this node.
#ifndef MAYPOLE_COMMON_PROCESS_SET_H_
#define MAYPOLE_COMMON_PROCESS_SET_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/board/board.h"

namespace maypole {

struct ProcessSet {
  uint32_t id = 0;
  std::vector<int> ranks;        // global
  std::vector<uint32_t> locals;  // of the members on this node

  int size() const { return static_cast<int>(ranks.size()); }
  // True if the set has members on other nodes.
  bool negotiated() const { return locals.size() < ranks.size(); }
  // Index of a global rank in `ranks`; -1 if the rank is not a member.
  int PositionOf(int rank) const {
    const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
    if (it == ranks.end() || *it != rank) return -1;
    return static_cast<int>(it - ranks.begin());
  }
  bool Has(int rank) const { return PositionOf(rank) >= 0; }
  // Index of a local rank in `locals`; -1 if the rank is not a member.
  int PlaceOf(uint32_t local) const {
    const auto it = std::lower_bound(locals.begin(), locals.end(), local);
    if (it == locals.end() || *it != local) return -1;
    return static_cast<int>(it - locals.begin());
  }
  uint64_t mask() const { return MaskOf(locals); }

  static uint64_t MaskOf(const std::vector<uint32_t>& locals) {
    uint64_t mask = 0;
    for (const uint32_t local : locals) mask |= uint64_t{1} << local;
    return mask;
  }
};

// `ranks` must be in ascending order.
ProcessSet MakeProcessSet(const BoardConfig& config, uint32_t id,
                          std::vector<int> ranks);
// Set 0: all ranks of the job.
ProcessSet MakeGlobalSet(const BoardConfig& config);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROCESS_SET_H_
