// ReduceInThread: the work of one thread of a reduction, and the lists of all
// reduction kernels.
//
// Purpose: k inputs are read once, combined in registers in the order of the
// inputs, and written to all outputs. Neighbouring threads of the grid handle
// neighbouring vectors:
//
//   | head elements | t0 | t1 | ... | tN | t0 | t1 | ... | other elements |
//
// Thread contract: any number of threads, in any order or concurrently.
//
// Invariants: a thread writes only elements that it has read itself before, so
// an output may be one of the inputs. There are no barriers and no shuffles, so
// that a test can run the threads one after the other.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_REDUCE_H_
#define MAYPOLE_COMMON_GPU_KERNELS_REDUCE_H_

#include <cstdint>

#include "common/gpu/kernels/arguments.h"
#include "common/gpu/kernels/device.h"
#include "common/gpu/kernels/elements.h"

namespace maypole::cuda {

// Inputs whose vectors a thread loads before it uses the first.
inline constexpr unsigned kLoadedAtOnce = 4;

template <typename E>
inline constexpr unsigned kPerVector = kVectorBytes /
                                       sizeof(typename E::Stored);

template <typename E>
struct Elements {
  typename E::Accumulator values[kPerVector<E>];
};

MAYPOLE_DEVICE bool IsPrescaled(const ReduceArguments& arguments, unsigned k) {
  return (arguments.prescaled >> k & 1) != 0;
}

template <typename E>
MAYPOLE_DEVICE Elements<E> Unpacked(const Vector& vector) {
  typename E::Stored stored[kPerVector<E>];
  memcpy(stored, vector.words, sizeof(stored));
  Elements<E> out;
  MAYPOLE_UNROLL
  for (unsigned i = 0; i < kPerVector<E>; ++i) {
    out.values[i] = E::Load(stored[i]);
  }
  return out;
}

template <typename E, typename O>
MAYPOLE_DEVICE Vector FinishedVector(const Elements<E>& elements,
                                     const ReduceArguments& arguments) {
  typename E::Stored stored[kPerVector<E>];
  MAYPOLE_UNROLL
  for (unsigned i = 0; i < kPerVector<E>; ++i) {
    stored[i] = E::Store(Finished<E, O>(elements.values[i], arguments));
  }
  Vector out;
  memcpy(out.words, stored, sizeof(stored));
  return out;
}

// Combines input k into `sum`; input 0 is the first.
template <typename E, typename O>
MAYPOLE_DEVICE void Combine(Elements<E>& sum, const Vector& vector, unsigned k,
                            const ReduceArguments& arguments) {
  Elements<E> more = Unpacked<E>(vector);
  if constexpr (kIsFloat<E>) {
    if (IsPrescaled(arguments, k)) {
      MAYPOLE_UNROLL
      for (unsigned i = 0; i < kPerVector<E>; ++i) {
        more.values[i] = Prescaled<E>(more.values[i], arguments);
      }
    }
  }
  if (k == 0) {
    sum = more;
    return;
  }
  MAYPOLE_UNROLL
  for (unsigned i = 0; i < kPerVector<E>; ++i) {
    sum.values[i] = O::Of(sum.values[i], more.values[i]);
  }
}

// `offset` is that of the vector from the beginning of each array, in bytes.
template <typename E, typename O>
MAYPOLE_DEVICE void ReduceVector(const ReduceArguments& arguments,
                                 uint64_t offset) {
  const unsigned count = arguments.input_count;
  Elements<E> sum = {};
  for (unsigned first = 0; first < count; first += kLoadedAtOnce) {
    Vector loaded[kLoadedAtOnce] = {};
    MAYPOLE_UNROLL
    for (unsigned j = 0; j < kLoadedAtOnce; ++j) {
      if (first + j < count) {
        loaded[j] = LoadAt<Vector>(arguments.inputs[first + j] + offset);
      }
    }
    MAYPOLE_UNROLL
    for (unsigned j = 0; j < kLoadedAtOnce; ++j) {
      if (first + j < count) {
        Combine<E, O>(sum, loaded[j], first + j, arguments);
      }
    }
  }
  const Vector result = FinishedVector<E, O>(sum, arguments);
  for (unsigned k = 0; k < arguments.output_count; ++k) {
    StoreAt<Vector>(arguments.outputs[k] + offset, result);
  }
}

// Elements at any address: byte by byte if `bytewise`.
template <typename T>
MAYPOLE_DEVICE T LoadElement(uint64_t address, bool bytewise) {
  if (!bytewise) return LoadAt<T>(address);
  uint8_t bytes[sizeof(T)];
  MAYPOLE_UNROLL
  for (unsigned i = 0; i < sizeof(T); ++i) {
    bytes[i] = LoadAt<uint8_t>(address + i);
  }
  T value;
  memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
MAYPOLE_DEVICE void StoreElement(uint64_t address, T value, bool bytewise) {
  if (!bytewise) return StoreAt<T>(address, value);
  uint8_t bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof(T));
  MAYPOLE_UNROLL
  for (unsigned i = 0; i < sizeof(T); ++i) {
    StoreAt<uint8_t>(address + i, bytes[i]);
  }
}

template <typename E, typename O>
MAYPOLE_DEVICE void ReduceElement(const ReduceArguments& arguments,
                                  uint64_t index) {
  using Stored = typename E::Stored;
  const uint64_t offset = index * sizeof(Stored);
  const bool bytewise = arguments.bytewise != 0;
  typename E::Accumulator sum = {};
  for (unsigned k = 0; k < arguments.input_count; ++k) {
    auto more =
        E::Load(LoadElement<Stored>(arguments.inputs[k] + offset, bytewise));
    if constexpr (kIsFloat<E>) {
      if (IsPrescaled(arguments, k)) more = Prescaled<E>(more, arguments);
    }
    sum = k == 0 ? more : O::Of(sum, more);
  }
  const Stored result = E::Store(Finished<E, O>(sum, arguments));
  for (unsigned k = 0; k < arguments.output_count; ++k) {
    StoreElement<Stored>(arguments.outputs[k] + offset, result, bytewise);
  }
}

template <typename E, typename O>
MAYPOLE_DEVICE void ReduceInThread(const ReduceArguments& arguments,
                                   uint64_t thread, uint64_t threads) {
  const uint64_t head = arguments.head, vectors = arguments.vectors;
  for (uint64_t v = thread; v < vectors; v += threads) {
    ReduceVector<E, O>(arguments,
                       head * sizeof(typename E::Stored) + v * kVectorBytes);
  }
  const uint64_t in_vectors = vectors * kPerVector<E>;
  const uint64_t singles = arguments.elements - in_vectors;
  for (uint64_t i = thread; i < singles; i += threads) {
    ReduceElement<E, O>(arguments, i < head ? i : i + in_vectors);
  }
}

}  // namespace maypole::cuda

// The kernels of each .cu file: X(the end of the name, E, O).
#define MAYPOLE_REDUCE_ALL_OPS(X, type, E) \
  X(type##_sum, E, Sum)                    \
  X(type##_product, E, Product)            \
  MAYPOLE_REDUCE_SIGNED_OPS(X, type, E)

// The operations for which int8 and uint8 differ.
#define MAYPOLE_REDUCE_SIGNED_OPS(X, type, E) \
  X(type##_average, E, Average)               \
  X(type##_min, E, Min)                       \
  X(type##_max, E, Max)

#define MAYPOLE_REDUCE_FLOATS(X)                   \
  MAYPOLE_REDUCE_ALL_OPS(X, float32, Plain<float>) \
  MAYPOLE_REDUCE_ALL_OPS(X, float64, Plain<double>)

#define MAYPOLE_REDUCE_HALVES(X)           \
  MAYPOLE_REDUCE_ALL_OPS(X, float16, Half) \
  MAYPOLE_REDUCE_ALL_OPS(X, bfloat16, Brain)

#define MAYPOLE_REDUCE_INTEGERS(X)                      \
  MAYPOLE_REDUCE_ALL_OPS(X, int8, Plain<int8_t>)        \
  MAYPOLE_REDUCE_SIGNED_OPS(X, uint8, Plain<uint8_t>)   \
  MAYPOLE_REDUCE_ALL_OPS(X, int16, Plain<int16_t>)      \
  MAYPOLE_REDUCE_SIGNED_OPS(X, uint16, Plain<uint16_t>) \
  MAYPOLE_REDUCE_ALL_OPS(X, int32, Plain<int32_t>)      \
  MAYPOLE_REDUCE_ALL_OPS(X, int64, Plain<int64_t>)      \
  X(bool_sum, Truth, Sum)                               \
  X(bool_product, Truth, Product)

// Defines one of them.
#define MAYPOLE_REDUCE_KERNEL(name, E, O)                                     \
  extern "C" __global__ void __launch_bounds__(kBlockThreads)                 \
      maypole_reduce_##name(                                                  \
          const __grid_constant__ maypole::cuda::ReduceArguments arguments) { \
    ReduceInThread<E, O>(                                                     \
        arguments,                                                            \
        static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x,         \
        static_cast<uint64_t>(gridDim.x) * blockDim.x);                       \
  }

#endif  // MAYPOLE_COMMON_GPU_KERNELS_REDUCE_H_
