// CopyShare: the work of one thread of KernelCopy.
//
// If both addresses have the same remainder modulo 16, the threads copy
// vectors, four in flight per thread, and single bytes before and after them;
// otherwise they copy bytes.
//
// Thread contract: any number of threads, in any order or concurrently; call it
// once for each `thread` below `threads`.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_COPY_SHARE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_COPY_SHARE_H_

#include <cstddef>
#include <cstdint>

#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin/kernels/share.h"

namespace maypole::gpu::plugin {

inline constexpr int kCopiedAtOnce = 4;  // vectors

MAYPOLE_SHARE void CopyVectors(Vector* to, const Vector* from, uint64_t vectors,
                               uint64_t thread, uint64_t threads) {
  uint64_t i = thread;
  for (; i + (kCopiedAtOnce - 1) * threads < vectors;
       i += kCopiedAtOnce * threads) {
    Vector loaded[kCopiedAtOnce];
    MAYPOLE_UNROLL
    for (int c = 0; c < kCopiedAtOnce; ++c) {
      loaded[c] = LoadVector(from + i + c * threads);
    }
    MAYPOLE_UNROLL
    for (int c = 0; c < kCopiedAtOnce; ++c) {
      StoreVector(to + i + c * threads, loaded[c]);
    }
  }
  for (; i < vectors; i += threads) StoreVector(to + i, LoadVector(from + i));
}

MAYPOLE_SHARE void CopyBytes(const CopyTask& task, uint64_t begin, uint64_t end,
                             uint64_t thread, uint64_t threads) {
  for (uint64_t i = begin + thread; i < end; i += threads) {
    task.to[i] = task.from[i];
  }
}

MAYPOLE_SHARE void CopyShare(const CopyTask& task, uint64_t thread,
                             uint64_t threads) {
  const auto to = reinterpret_cast<uintptr_t>(task.to);
  const auto from = reinterpret_cast<uintptr_t>(task.from);
  uint64_t head = (0 - to) % kVectorBytes;  // bytes before the first vector
  if ((to ^ from) % kVectorBytes != 0 || head > task.bytes) head = task.bytes;
  const uint64_t vectors = (task.bytes - head) / kVectorBytes;
  CopyBytes(task, 0, head, thread, threads);
  CopyVectors(reinterpret_cast<Vector*>(task.to + head),
              reinterpret_cast<const Vector*>(task.from + head), vectors,
              thread, threads);
  CopyBytes(task, head + vectors * kVectorBytes, task.bytes, thread, threads);
}

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_COPY_SHARE_H_
