// Enqueue(): gives an operation to a stream, unless the stream is being
// captured.
//
//   Operation fill = {.work = [=] { std::memset(data, 0, bytes); },
//                     .uses = {{address, bytes}}};
//   return Enqueue(call, *stream, std::move(fill));
//
// Thread contract: as Call.
#ifndef MAYPOLE_TESTS_GPU_FAKE_ENQUEUE_H_
#define MAYPOLE_TESTS_GPU_FAKE_ENQUEUE_H_

#include <utility>

#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {

// A capturing stream does not execute the operation, and no graph is made of
// it.
inline CUresult Enqueue(Call& call, Stream& stream, Operation operation) {
  if (stream.capture != nullptr) {
    return stream.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                       : CUDA_SUCCESS;
  }
  call.context.engine.Push(stream, std::move(operation));
  return CUDA_SUCCESS;
}

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_ENQUEUE_H_
