// TaskOf: a Reduction as the kernel takes it, checked.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_

#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {

// Bytes of an element that the kernels reduce; throws InvalidArgument for
// other types.
uint64_t ElementBytes(uint8_t dtype);

// Throws InvalidArgument for what gpu.h's Reduction forbids; but addresses that
// are only aligned to an element are taken (and slower).
ReduceTask TaskOf(const MaypoleGpuReduction& reduction);

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_
