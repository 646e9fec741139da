// GPU memory for the user's own tensors, shared with the node's executor, which
// reduces it in place.
//
// Purpose: as with frameworks' allocators, memory may be freed while streams
// still use it. So an event is recorded on each of those streams, and the
// memory is reused when all events are done. It may be freed after the epoch,
// and after the Staging from which it came is gone.
//
//   CUdeviceptr memory = 0;
//   Status s = AllocateUserGpuMemory(staging, 0, bytes, &memory);
//   s = FreeUserGpuMemory(memory, {&stream, 1});
//
// Thread contract: all functions may be called by any thread. Allocating waits
// for the executor, but nothing here waits for a GPU.
//
// Invariants: memory is reused or unmapped only when the work that the streams
// had when it was freed is done. If nothing can show when that is, it is never
// reused.
#ifndef MAYPOLE_CLIENT_GPU_USER_GPU_MEMORY_H_
#define MAYPOLE_CLIENT_GPU_USER_GPU_MEMORY_H_

#include <cstdint>
#include <memory>
#include <span>

#include "client/gpu/staging.h"
#include "common/gpu/cuda_types.h"
#include "common/status.h"

namespace maypole {

// `gpu`: the ordinal of the device in this process. kResourceExhausted: there
// is no room, or the memory of this GPU cannot be shared.
Status AllocateUserGpuMemory(const std::shared_ptr<Staging>& staging, int gpu,
                             uint64_t bytes, cuda::CUdeviceptr* memory);
// Frees what AllocateUserGpuMemory() has returned; does nothing in a forked
// child, whose memory it is not. After an error the memory is never reused,
// unless the code is kInvalidArgument: then nothing was done.
Status FreeUserGpuMemory(cuda::CUdeviceptr memory,
                         std::span<const cuda::CUstream> streams);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_USER_GPU_MEMORY_H_
