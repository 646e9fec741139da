// What another fake library, such as NCCL's, needs from the fake driver.
//
// Purpose: CUDA libraries launch their own kernels. A fake library is loaded
// beside libcuda.so.1 and finds these functions there by dlsym(). fail= of
// $MAYPOLE_FAKE_CUDA does not count them.
//
//   FakeCudaLaunch launch = {.context = context, .streams = &stream, ...};
//   void* operation = nullptr;
//   fakeCudaEnqueue(&launch, &operation);
//   fakeCudaWait(operation);
//
// Thread contract: any thread may call them; no context must be current, but
// for fakeCudaCurrent(). `work` is called by a stream's thread, without a
// mutex.
//
// Invariants: `work` is called once, or never if the process ends before.
#ifndef MAYPOLE_TESTS_GPU_FAKE_LIBRARY_HOOK_H_
#define MAYPOLE_TESTS_GPU_FAKE_LIBRARY_HOOK_H_

#include <cstddef>

#include "common/gpu/cuda_types.h"

namespace maypole::cuda::fake {

struct FakeCudaRange {
  CUdeviceptr start;
  size_t bytes;  // 0: no memory; its host address is null
};

struct FakeCudaLaunch {
  CUcontext context;
  // The work is done in the order of the first stream. The others are taken
  // along: it begins after what they contain, and they go on after it.
  const CUstream* streams;
  size_t stream_count;
  void* previous;  // an operation that is to be done before; null: none
  const FakeCudaRange* ranges;
  size_t range_count;
  // `host[i]` is where the bytes of ranges[i] are.
  void (*work)(void* argument, void* const* host);
  void* argument;
};

extern "C" {

// The calling thread's context and its GPU.
CUresult fakeCudaCurrent(CUcontext* context, CUuuid* uuid);

// CUDA_ERROR_INVALID_HANDLE: the context has no such stream.
// CUDA_ERROR_INVALID_VALUE: a range is not memory that the GPU can access.
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a stream captures.
CUresult fakeCudaEnqueue(const FakeCudaLaunch* launch, void** operation);

// Waits until the operation is done; null: until all streams are idle.
CUresult fakeCudaWait(void* operation);

// Each operation that fakeCudaEnqueue() has returned must be forgotten once.
void fakeCudaForget(void* operation);

}  // extern "C"

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_LIBRARY_HOOK_H_
