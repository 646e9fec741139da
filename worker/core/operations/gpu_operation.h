// MakeGpuOperation: makes the operation that GPUs execute from what this node's
// ranks have submitted.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_GPU_OPERATION_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_GPU_OPERATION_H_

#include <cstdint>
#include <vector>

#include "common/gpu/runner/gpu_run.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

// Returns the operation of `entry.reported`, with its tensors on this node's
// GPUs. gpus: the NCCL ranks of the members' GPUs, by position in the process
// set; unused for an allreduce. rows: for an allgather or alltoall, as in
// ResultsHaveRoom() (common/gather_room.h).
GpuOperation MakeGpuOperation(uint32_t slot, const SlotEntry& entry,
                              const std::vector<uint32_t>& gpus,
                              const std::vector<int64_t>& rows);

// Returns `rows` as this node's ranks have submitted them; 0 for other nodes'
// ranks.
std::vector<int64_t> LocalRows(const SlotEntry& entry);
// Returns the room of each member's result, by position in the process set;
// UINT64_MAX for other nodes' ranks.
std::vector<uint64_t> RoomsOf(const SlotEntry& entry);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_GPU_OPERATION_H_
