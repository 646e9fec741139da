// Compiled for AVX2 (see BUILD.bazel), by Google Highway's static dispatch: its
// dynamic one needs libhwy, which libmaypole must not bring along. On other
// architectures this file is empty but for the stubs.
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
V Finished(V v, const D& d, const Finish& finish) {
  using T = hn::TFromD<D>;
  if constexpr (hwy::IsFloat<T>()) {
    if (finish.divisor != 1) {
      v = hn::Div(v, hn::Set(d, static_cast<T>(finish.divisor)));
    }
    if (finish.scale != 1.0) {
      v = hn::Mul(v, hn::Set(d, static_cast<T>(finish.scale)));
    }
  }
  return v;
}

template <typename E>
size_t SumOf(std::span<const std::byte* const> inputs,
             std::span<std::byte* const> outputs, size_t elements,
             const Finish& finish) {
  const size_t lanes = E::Lanes();
  const bool plain = finish.identity();
  using D = hn::DFromV<typename E::V>;
  size_t i = 0;
  for (; i + lanes <= elements; i += lanes) {
    auto acc = E::Load(inputs[0], i);
    for (size_t k = 1; k < inputs.size(); ++k) {
      acc = hn::Add(acc, E::Load(inputs[k], i));
    }
    if (!plain) acc = Finished(acc, D(), finish);
    for (std::byte* out : outputs) E::Store(acc, out, i);
  }
  return i;
}

// Two inputs of float32 are what most jobs reduce: four vectors a turn.
size_t SumTwoFloats(std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, size_t elements,
                    const Finish& finish) {
  using E = Plain<float>;
  const size_t lanes = E::Lanes();
  const bool plain = finish.identity();
  size_t i = 0;
  for (; i + 4 * lanes <= elements; i += 4 * lanes) {
    E::V v[4];
    for (size_t u = 0; u < 4; ++u) {
      v[u] = hn::Add(E::Load(inputs[0], i + u * lanes),
                     E::Load(inputs[1], i + u * lanes));
      if (!plain) v[u] = Finished(v[u], E::d, finish);
    }
    for (std::byte* out : outputs) {
      for (size_t u = 0; u < 4; ++u) E::Store(v[u], out, i + u * lanes);
    }
  }
  return i;
}

}  // namespace

size_t SumAvx2(DType dtype, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs, size_t elements,
               const Finish& finish) {
  // Integers are divided one by one (average).
  const bool divides = finish.divisor != 1;
  switch (dtype) {
    case DType::kFloat32:
      if (inputs.size() == 2) {
        return SumTwoFloats(inputs, outputs, elements, finish);
      }
      return SumOf<Plain<float>>(inputs, outputs, elements, finish);
    case DType::kFloat64:
      return SumOf<Plain<double>>(inputs, outputs, elements, finish);
    case DType::kInt32:
      if (divides) return 0;
      return SumOf<Plain<int32_t>>(inputs, outputs, elements, finish);
    case DType::kInt64:
      if (divides) return 0;
      return SumOf<Plain<int64_t>>(inputs, outputs, elements, finish);
    case DType::kUint8:
      if (divides) return 0;
      return SumOf<Plain<uint8_t>>(inputs, outputs, elements, finish);
    case DType::kFloat16:
      return SumOf<Half>(inputs, outputs, elements, finish);
    case DType::kBfloat16:
      return SumOf<Brain>(inputs, outputs, elements, finish);
    default:
      return 0;
  }
}

}  // namespace maypole

#else

namespace maypole {

size_t SumAvx2(DType, std::span<const std::byte* const>,
               std::span<std::byte* const>, size_t, const Finish&) {
  return 0;
}

}  // namespace maypole

#endif
