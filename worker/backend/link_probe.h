// Measures what the links between the nodes cost.
//
// Purpose: the figures of ExchangeModel. Each node measures with its neighbour
// (0 with 1, 2 with 3, ...), all pairs at the same time, with the exchanges
// that a job uses; the least of a few tries counts. Then all nodes agree on the
// worst pair's figures. Takes some ten exchanges of at most 256 KiB.
//
// Three and more nodes also measure the wire to their other neighbour (1 with
// 2, ...), so that a node with a slow wire can be told from its neighbours: to
// both of its own the wire is slow, each of these has a faster one.
//
// Thread contract: as Backend's Start. Sets the backend's callback. Blocks
// until the other nodes have taken part, or the backend fails or is aborted; if
// they do not take part in time, `on_late` must make it fail.
#ifndef MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_
#define MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/exchange_model.h"

namespace maypole::worker {

struct AgreedLinks {
  LinkCosts costs;
  uint32_t max_levels = 1;  // the least that a node allows
  // Of each node: the lesser LinkCosts::wire of those to its neighbours, at
  // least 1.
  std::vector<uint64_t> wires;
};

// The nodes, ascending, whose wire is kSlowWire times as slow as the median of
// all, and slower than kFastWireNs: faster ones are measured too roughly.
inline constexpr uint64_t kSlowWire = 3;
inline constexpr uint64_t kFastWireNs = 2'000'000;  // for a MiB: 4.2 Gbit/s
std::vector<uint32_t> SlowWires(const std::vector<uint64_t>& wires);

struct ProbeOptions {
  uint32_t self = 0;
  uint32_t nodes = 1;
  uint32_t max_levels = 1;  // that this node allows
  std::chrono::milliseconds timeout{20000};
  // After `timeout`. `node`: that has not taken part, if it is known.
  std::function<void(std::optional<uint32_t> node)> on_late = {};
};

// For all nodes of the backend, which exchanges in one level meanwhile.
absl::StatusOr<AgreedLinks> MeasureLinks(Backend* backend,
                                         const ProbeOptions& options);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_
