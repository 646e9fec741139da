// Layout: where the bytes of a negotiated run come from and go to.
//
// Purpose: divides the byte space of a run into blocks by source and
// destination node. The byte space holds
//
//   allgather      the members' tensors, in the order of the set
//   alltoall       the members' inputs, in the order of the set; each input has
//                  the rows for the first rank of the set, the second, ...
//   reducescatter  the inputs, superimposed; the rows for the first rank of the
//                  set, the second, ...
//
// Thread contract: pure functions.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_LAYOUT_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/run_spec.h"
#include "worker/core/operations/sets.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

// Returns the error for a run that does not match what this node has reported.
absl::Status Misfit(const proto::Run& run, const std::string& what);

// Adds the blocks of one operation that begins at `offset`.
void LayOutScatter(const NodeSet& set, const Signature& s, uint64_t offset,
                   RunSpec* spec);
// These two also set spec->bytes. `job_size` is the size of run.first_dims.
absl::Status LayOutGather(const proto::Run& run, const NodeSet& set,
                          uint32_t job_size, const Signature& s, RunSpec* spec);
// `entry` is what this node, whose index is `node`, has reported.
absl::Status LayOutAlltoall(const proto::Run& run, const SlotEntry& entry,
                            uint32_t node, RunSpec* spec);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_LAYOUT_H_
