// Compiled for AVX2 or NEON (see BUILD.bazel), by Google Highway's static
// dispatch: its dynamic one needs libhwy, which libmaypole must not bring
// along. On other architectures this file is empty but for the stub.
//
// This object must not export any symbol that another file may also define: the
// linker keeps only one copy of an inline function, perhaps this one, and
// processors without AVX2 would run it. So everything is in the unnamed
// namespace, the interface is plain, and common/reduce/simd_symbols_test.py
// checks the symbols of the object file.
#include "common/reduce/reduce_simd.h"

#if (defined(__AVX2__) && defined(__F16C__)) || defined(__aarch64__)

#include <type_traits>

#include "hwy/highway.h"

// If a compiler flag is missing, Highway silently uses an older target.
#if defined(__aarch64__)
static_assert(HWY_STATIC_TARGET == HWY_NEON);
#else
static_assert(HWY_STATIC_TARGET == HWY_AVX2);
#endif

namespace maypole {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// How a vector of a dtype is loaded, finished and stored; V is what is reduced.
template <typename T>
struct Plain {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr D d{};
  static size_t Lanes() { return hn::Lanes(d); }
  static V Load(const std::byte* p, size_t i) {
    return hn::LoadU(d, reinterpret_cast<const T*>(p) + i);
  }
  static void Store(V v, std::byte* p, size_t i) {
    hn::StoreU(v, d, reinterpret_cast<T*>(p) + i);
  }
};

using F32 = hn::ScalableTag<float>;
using F32V = hn::Vec<F32>;

struct Half {
  using V = F32V;
  static size_t Lanes() { return hn::Lanes(F32()); }
  static V Load(const std::byte* p, size_t i) {
    const hn::Rebind<hwy::float16_t, F32> d16;
    return hn::PromoteTo(
        F32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p) + i));
  }
  static void Store(V v, std::byte* p, size_t i) {
    const hn::Rebind<hwy::float16_t, F32> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16,
               reinterpret_cast<hwy::float16_t*>(p) + i);
  }
};

// Highway's own bfloat16 demotion truncates; ours rounds to nearest even.
struct Brain {
  using V = F32V;
  using U32 = hn::RebindToUnsigned<F32>;
  static size_t Lanes() { return hn::Lanes(F32()); }
  static V Load(const std::byte* p, size_t i) {
    const hn::Rebind<uint16_t, F32> d16;
    const auto bits = hn::PromoteTo(
        U32(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p) + i));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
  }
  static void Store(V v, std::byte* p, size_t i) {
    const hn::Rebind<uint16_t, F32> d16;
    const U32 u;
    const hn::RebindToSigned<F32> s;
    const auto bits = hn::BitCast(u, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(u, 0x40));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(v));
    const auto out = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(s, out)), d16,
               reinterpret_cast<uint16_t*>(p) + i);
  }
};

// Any byte but 0 is true.
struct Truth : Plain<uint8_t> {
  static V Load(const std::byte* p, size_t i) {
    return hn::Min(Plain<uint8_t>::Load(p, i), hn::Set(d, 1));
  }
};

template <typename V, typename D>
V ApplyEpilogue(V v, const D& d, const ReduceTask& task) {
  using T = hn::TFromD<D>;
  if constexpr (hwy::IsFloat<T>()) {
    if (task.divisor != 1) {
      v = hn::Div(v, hn::Set(d, static_cast<T>(task.divisor)));
    }
    if (task.scale != 1.0) {
      v = hn::Mul(v, hn::Set(d, static_cast<T>(task.scale)));
    }
  }
  return v;
}

bool IsPlain(const ReduceTask& task) {
  return task.divisor == 1 && task.scale == 1.0;
}

// The operations on the result so far and the next input. They treat NaNs and
// zeros as reduce.h says, like reduce.cc.
struct AddOp {
  template <typename V>
  static V Of(V a, V b) {
    return hn::Add(a, b);
  }
};

struct MultiplyOp {
  template <typename V>
  static V Of(V a, V b) {
    using D = hn::DFromV<V>;
    if constexpr (sizeof(hn::TFromD<D>) > 1) {
      return hn::Mul(a, b);
    } else {
      // AVX2 and Highway cannot multiply bytes: computes the even and the odd
      // ones as the low bytes of 16-bit products.
      const hn::Repartition<uint16_t, D> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0xff));
      const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
      return hn::BitCast(D(), hn::Or(even, hn::ShiftLeft<8>(odd)));
    }
  }
};

// Selects b where it wins or is NaN. A NaN in a is kept, because no comparison
// with it is true.
template <typename V, typename M>
V Chosen(V a, V b, M b_wins) {
  return hn::IfThenElse(hn::Or(b_wins, hn::IsNaN(b)), b, a);
}

struct MinOp {
  template <typename V>
  static V Of(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return Chosen(a, b, hn::Lt(b, a));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct MaxOp {
  template <typename V>
  static V Of(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return Chosen(a, b, hn::Gt(b, a));
    } else {
      return hn::Max(a, b);
    }
  }
};

// Reduces kVectors vectors a turn, from element `i` on; returns the first
// element that is left.
template <typename E, typename O, size_t kVectors>
size_t FoldFrom(size_t i, const ReduceTask& task) {
  const size_t lanes = E::Lanes();
  const bool plain = IsPlain(task);
  using D = hn::DFromV<typename E::V>;
  for (; i + kVectors * lanes <= task.elements; i += kVectors * lanes) {
    typename E::V acc[kVectors];
    for (size_t u = 0; u < kVectors; ++u) {
      acc[u] = E::Load(task.inputs[0], i + u * lanes);
    }
    for (size_t k = 1; k < task.input_count; ++k) {
      for (size_t u = 0; u < kVectors; ++u) {
        acc[u] = O::Of(acc[u], E::Load(task.inputs[k], i + u * lanes));
      }
    }
    for (size_t u = 0; !plain && u < kVectors; ++u) {
      acc[u] = ApplyEpilogue(acc[u], D(), task);
    }
    for (size_t k = 0; k < task.output_count; ++k) {
      for (size_t u = 0; u < kVectors; ++u) {
        E::Store(acc[u], task.outputs[k], i + u * lanes);
      }
    }
  }
  return i;
}

// Two vectors a turn, a cache line of each input: with one, inputs can evict
// each other from the L1 cache between the halves of a line (see kArenaGap in
// common/board/board.cc).
template <typename E, typename O>
size_t Fold(const ReduceTask& task) {
  return FoldFrom<E, O, 1>(FoldFrom<E, O, 2>(0, task), task);
}

// Two inputs of float32 are what most jobs reduce: four vectors a turn.
template <typename O>
size_t FoldTwoFloats(const ReduceTask& task) {
  using E = Plain<float>;
  const size_t lanes = E::Lanes();
  const bool plain = IsPlain(task);
  size_t i = 0;
  for (; i + 4 * lanes <= task.elements; i += 4 * lanes) {
    E::V v[4];
    for (size_t u = 0; u < 4; ++u) {
      v[u] = O::Of(E::Load(task.inputs[0], i + u * lanes),
                   E::Load(task.inputs[1], i + u * lanes));
      if (!plain) v[u] = ApplyEpilogue(v[u], E::d, task);
    }
    for (size_t k = 0; k < task.output_count; ++k) {
      for (size_t u = 0; u < 4; ++u) {
        E::Store(v[u], task.outputs[k], i + u * lanes);
      }
    }
  }
  return i;
}

template <typename E, typename O>
size_t FoldFloats(const ReduceTask& task) {
  if constexpr (std::is_same_v<E, Plain<float>>) {
    if (task.input_count == 2) return FoldTwoFloats<O>(task);
  }
  return Fold<E, O>(task);
}

template <typename E>
size_t Floats(const ReduceTask& task) {
  switch (task.op) {
    case Op::kSum:
    case Op::kAverage:
    case Op::kAdasum:
      return FoldFloats<E, AddOp>(task);
    case Op::kMin:
      return FoldFloats<E, MinOp>(task);
    case Op::kMax:
      return FoldFloats<E, MaxOp>(task);
    case Op::kProduct:
      return FoldFloats<E, MultiplyOp>(task);
  }
  return 0;
}

template <typename T>
size_t Integers(const ReduceTask& task) {
  if (!IsPlain(task)) return 0;  // reduce.cc divides and scales one by one
  using E = Plain<T>;
  switch (task.op) {
    case Op::kSum:
    case Op::kAverage:
    case Op::kAdasum:
      return Fold<E, AddOp>(task);
    case Op::kMin:
      return Fold<E, MinOp>(task);
    case Op::kMax:
      return Fold<E, MaxOp>(task);
    case Op::kProduct:
      return Fold<E, MultiplyOp>(task);
  }
  return 0;
}

// Values are 0 or 1: OR is the maximum, AND the minimum.
size_t Truths(const ReduceTask& task) {
  switch (task.op) {
    case Op::kMin:
    case Op::kProduct:
      return Fold<Truth, MinOp>(task);
    default:
      return Fold<Truth, MaxOp>(task);
  }
}

}  // namespace

size_t ReduceSimd(const ReduceTask& task) {
  switch (task.dtype) {
    case DType::kUint8:
      return Integers<uint8_t>(task);
    case DType::kInt8:
      return Integers<int8_t>(task);
    case DType::kUint16:
      return Integers<uint16_t>(task);
    case DType::kInt16:
      return Integers<int16_t>(task);
    case DType::kInt32:
      return Integers<int32_t>(task);
    case DType::kInt64:
      return Integers<int64_t>(task);
    case DType::kFloat16:
      return Floats<Half>(task);
    case DType::kFloat32:
      return Floats<Plain<float>>(task);
    case DType::kFloat64:
      return Floats<Plain<double>>(task);
    case DType::kBool:
      return Truths(task);
    case DType::kBfloat16:
      return Floats<Brain>(task);
  }
  return 0;
}

}  // namespace maypole

#else

namespace maypole {

size_t ReduceSimd(const ReduceTask&) { return 0; }

}  // namespace maypole

#endif
