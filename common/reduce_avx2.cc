// Compiled for AVX2 (see BUILD.bazel), by Google Highway's static dispatch: its
// dynamic one needs libhwy, which libmaypole must not bring along. On other
// architectures this file is empty but for the stub.
//
// Nothing with a name that another file may define too leaves this object: the
// linker would keep one copy of an inline function, perhaps this one, and
// processors without AVX2 would run it. So everything is in the unnamed
// namespace, the interface is plain, and common/avx2_symbols_test.py looks at
// what the compiler made of it.
#include "common/reduce_simd.h"

#if defined(__AVX2__) && defined(__F16C__)

#include "hwy/highway.h"

// With a flag missing Highway falls back to an older target without a word.
static_assert(HWY_STATIC_TARGET == HWY_AVX2);

namespace maypole {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// How a vector of a dtype is loaded, finished and stored; Acc is what is added.
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

template <typename V, typename D>
V Finished(V v, const D& d, const SumTask& task) {
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

bool IsPlain(const SumTask& task) {
  return task.divisor == 1 && task.scale == 1.0;
}

template <typename E>
size_t SumOf(const SumTask& task) {
  const size_t lanes = E::Lanes();
  const bool plain = IsPlain(task);
  using D = hn::DFromV<typename E::V>;
  size_t i = 0;
  for (; i + lanes <= task.elements; i += lanes) {
    auto acc = E::Load(task.inputs[0], i);
    for (size_t k = 1; k < task.input_count; ++k) {
      acc = hn::Add(acc, E::Load(task.inputs[k], i));
    }
    if (!plain) acc = Finished(acc, D(), task);
    for (size_t k = 0; k < task.output_count; ++k) {
      E::Store(acc, task.outputs[k], i);
    }
  }
  return i;
}

// Two inputs of float32 are what most jobs reduce: four vectors a turn.
size_t SumTwoFloats(const SumTask& task) {
  using E = Plain<float>;
  const size_t lanes = E::Lanes();
  const bool plain = IsPlain(task);
  size_t i = 0;
  for (; i + 4 * lanes <= task.elements; i += 4 * lanes) {
    E::V v[4];
    for (size_t u = 0; u < 4; ++u) {
      v[u] = hn::Add(E::Load(task.inputs[0], i + u * lanes),
                     E::Load(task.inputs[1], i + u * lanes));
      if (!plain) v[u] = Finished(v[u], E::d, task);
    }
    for (size_t k = 0; k < task.output_count; ++k) {
      for (size_t u = 0; u < 4; ++u) {
        E::Store(v[u], task.outputs[k], i + u * lanes);
      }
    }
  }
  return i;
}

}  // namespace

size_t SumAvx2(const SumTask& task) {
  // Integers are divided one by one (average).
  const bool divides = task.divisor != 1;
  switch (task.dtype) {
    case DType::kFloat32:
      return task.input_count == 2 ? SumTwoFloats(task)
                                   : SumOf<Plain<float>>(task);
    case DType::kFloat64:
      return SumOf<Plain<double>>(task);
    case DType::kInt32:
      return divides ? 0 : SumOf<Plain<int32_t>>(task);
    case DType::kInt64:
      return divides ? 0 : SumOf<Plain<int64_t>>(task);
    case DType::kUint8:
      return divides ? 0 : SumOf<Plain<uint8_t>>(task);
    case DType::kFloat16:
      return SumOf<Half>(task);
    case DType::kBfloat16:
      return SumOf<Brain>(task);
    default:
      return 0;
  }
}

}  // namespace maypole

#else

namespace maypole {

size_t SumAvx2(const SumTask&) { return 0; }

}  // namespace maypole

#endif
