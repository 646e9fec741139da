// MakeOperation: what GPUs do for an operation, from its signature.
//
// Purpose: the one rule for executors, which have the tensors of all ranks of
// their node, and for ranks that call NCCL themselves.
//
//   GpuOperation o = MakeOperation(signature, set.ranks, rows);
//   o.slot = ...; o.tensors = ...; o.members[i].gpu = ...;
//
// Thread contract: a pure function.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_MAKE_OPERATION_H_
#define MAYPOLE_COMMON_GPU_RUNNER_MAKE_OPERATION_H_

#include <cstdint>
#include <vector>

#include "common/gpu/runner/gpu_run.h"
#include "common/wire/signature.h"

namespace maypole {

// ranks: those of the process set, ascending. rows: of an allgather or
// alltoall, as for ResultsHaveRoom() (common/gather_room.h). The caller sets
// slot, generation and tensors, and for kinds other than allreduce the members'
// GPUs and tensors: MakeOperation() gives them all GPU 0 and no tensor.
GpuOperation MakeOperation(const Signature& signature,
                           const std::vector<int>& ranks,
                           const std::vector<int64_t>& rows);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_MAKE_OPERATION_H_
