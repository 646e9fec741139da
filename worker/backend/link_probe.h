// Measures what the links between the nodes cost.
//
// Purpose: the figures of ExchangeModel. Each node measures with its neighbour
// (0 with 1, 2 with 3, ...), all pairs at the same time, with the exchanges
// that a job uses; the least of a few tries counts. Then all nodes agree on the
// worst pair's figures. Takes some ten exchanges of at most 256 KiB.
//
// Thread contract: as Backend's Start. Sets the backend's callback. Blocks
// until the other nodes take part, or the backend fails or is aborted.
#ifndef MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_
#define MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/exchange_model.h"

namespace maypole::worker {

struct AgreedLinks {
  LinkCosts costs;
  uint32_t max_levels = 1;  // the least that a node allows
};

// For all nodes of the backend, which exchanges in one level meanwhile.
absl::StatusOr<AgreedLinks> MeasureLinks(Backend* backend, uint32_t self,
                                         uint32_t nodes, uint32_t max_levels);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_LINK_PROBE_H_
