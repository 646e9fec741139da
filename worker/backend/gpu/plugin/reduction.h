// TaskOf: checks a Reduction and converts it to the kernel's argument.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_

#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {

// Returns the bytes of an element; throws InvalidArgument for types that the
// kernels do not reduce.
uint64_t ElementBytes(uint8_t dtype);

// Throws InvalidArgument for what gpu.h's Reduction forbids, except that
// addresses need only be aligned to an element (which is slower).
ReduceTask TaskOf(const MaypoleGpuReduction& reduction);

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_REDUCTION_H_
