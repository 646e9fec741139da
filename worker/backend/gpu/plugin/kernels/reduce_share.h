// ReduceShare: the work of one thread of a reduction.
//
// Purpose: k inputs of S bytes are read once, combined in registers and written
// to m outputs, which moves (k + m) * S bytes. Neighbouring threads of the grid
// handle neighbouring elements:
//
//   vectors of 16 bytes   | t0 | t1 | ... | tN | t0 | t1 | ...
//   elements after them   t0 t1 t2 (fewer than a vector holds)
//
// If an address is not a multiple of 16, the threads handle single elements.
//
// Invariants: a thread only writes elements that it has read itself before, so
// an output may be one of the inputs.
//
// Thread contract: any number of threads, in any order or concurrently; call it
// once for each `thread` below `threads`.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_SHARE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_SHARE_H_

#include <cstdint>
#include <cstring>

#include "worker/backend/gpu/plugin/kernels/elements.h"
#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin/kernels/share.h"

namespace maypole::gpu::plugin {

template <typename E>
inline constexpr int kPerVector = sizeof(Vector) / sizeof(typename E::Stored);

// Vectors of each input that a thread has in flight: about eight in total, so
// that few inputs use the memory bandwidth, too. kInputs is 0 for a number of
// inputs that is only known at run time.
template <int kInputs>
inline constexpr int kVectorsAtOnce = kInputs == 0   ? 1
                                      : kInputs <= 2 ? 4
                                      : kInputs <= 4 ? 2
                                                     : 1;

template <typename E>
struct Elements {
  typename E::Accumulator values[kPerVector<E>];
};

template <typename E>
MAYPOLE_SHARE Elements<E> Unpack(const Vector& vector) {
  typename E::Stored stored[kPerVector<E>];
  memcpy(stored, vector.words, sizeof(stored));
  Elements<E> out;
  MAYPOLE_UNROLL
  for (int i = 0; i < kPerVector<E>; ++i) out.values[i] = E::Load(stored[i]);
  return out;
}

template <typename E>
MAYPOLE_SHARE Vector Pack(const Elements<E>& elements,
                          typename E::Accumulator scale) {
  typename E::Stored stored[kPerVector<E>];
  MAYPOLE_UNROLL
  for (int i = 0; i < kPerVector<E>; ++i) {
    stored[i] = E::Store(elements.values[i] * scale);
  }
  Vector out;
  memcpy(out.words, stored, sizeof(stored));
  return out;
}

template <typename E, typename O>
MAYPOLE_SHARE void Combine(Elements<E>& into, const Vector& vector) {
  const Elements<E> more = Unpack<E>(vector);
  MAYPOLE_UNROLL
  for (int i = 0; i < kPerVector<E>; ++i) {
    into.values[i] = O::Of(into.values[i], more.values[i]);
  }
}

MAYPOLE_SHARE Vector LoadOf(const ReduceTask& task, uint32_t input,
                            uint64_t index) {
  return LoadVector(reinterpret_cast<const Vector*>(task.inputs[input]) +
                    index);
}

MAYPOLE_SHARE void StoreAll(const ReduceTask& task, uint64_t index,
                            const Vector& vector) {
  for (uint32_t j = 0; j < task.output_count; ++j) {
    StoreVector(reinterpret_cast<Vector*>(task.outputs[j]) + index, vector);
  }
}

// Reduces kCount vectors: `index`, `index + stride`, ... If the number of
// inputs is known, all loads precede the first use.
template <typename E, typename O, int kInputs, int kCount>
MAYPOLE_SHARE void ReduceVectors(const ReduceTask& task, uint64_t index,
                                 uint64_t stride) {
  const auto scale = static_cast<typename E::Accumulator>(task.scale);
  if constexpr (kInputs == 0) {
    static_assert(kCount == 1);
    Elements<E> sum = Unpack<E>(LoadOf(task, 0, index));
    for (uint32_t k = 1; k < task.input_count; ++k) {
      Combine<E, O>(sum, LoadOf(task, k, index));
    }
    StoreAll(task, index, Pack<E>(sum, scale));
  } else {
    Vector loaded[kCount][kInputs];
    MAYPOLE_UNROLL
    for (int c = 0; c < kCount; ++c) {
      MAYPOLE_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        loaded[c][k] = LoadOf(task, k, index + c * stride);
      }
    }
    MAYPOLE_UNROLL
    for (int c = 0; c < kCount; ++c) {
      Elements<E> sum = Unpack<E>(loaded[c][0]);
      MAYPOLE_UNROLL
      for (int k = 1; k < kInputs; ++k) Combine<E, O>(sum, loaded[c][k]);
      StoreAll(task, index + c * stride, Pack<E>(sum, scale));
    }
  }
}

template <typename E, typename O>
MAYPOLE_SHARE void ReduceElement(const ReduceTask& task, uint64_t index) {
  using Stored = typename E::Stored;
  using Accumulator = typename E::Accumulator;
  Accumulator sum =
      E::Load(reinterpret_cast<const Stored*>(task.inputs[0])[index]);
  for (uint32_t k = 1; k < task.input_count; ++k) {
    const auto* input = reinterpret_cast<const Stored*>(task.inputs[k]);
    sum = O::Of(sum, E::Load(input[index]));
  }
  const Stored result = E::Store(sum * static_cast<Accumulator>(task.scale));
  for (uint32_t j = 0; j < task.output_count; ++j) {
    reinterpret_cast<Stored*>(task.outputs[j])[index] = result;
  }
}

// kInputs must be task.input_count or 0.
template <typename E, typename O, int kInputs>
MAYPOLE_SHARE void ReduceShare(const ReduceTask& task, uint64_t thread,
                               uint64_t threads) {
  constexpr int kAtOnce = kVectorsAtOnce<kInputs>;
  uint64_t first_single = 0;
  if (task.vectors) {
    const uint64_t vectors = task.elements / kPerVector<E>;
    uint64_t i = thread;
    for (; i + (kAtOnce - 1) * threads < vectors; i += kAtOnce * threads) {
      ReduceVectors<E, O, kInputs, kAtOnce>(task, i, threads);
    }
    for (; i < vectors; i += threads) {
      ReduceVectors<E, O, kInputs, 1>(task, i, threads);
    }
    first_single = vectors * kPerVector<E>;
  }
  for (uint64_t i = first_single + thread; i < task.elements; i += threads) {
    ReduceElement<E, O>(task, i);
  }
}

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_REDUCE_SHARE_H_
