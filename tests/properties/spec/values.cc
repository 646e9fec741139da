#include "tests/properties/spec/values.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tests/properties/spec/narrow_float.h"

namespace maypole::properties {
namespace {

// A cheap stream of random numbers: most of the time goes into values.
class Stream {
 public:
  explicit Stream(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

double Exact(uint64_t bits, Op op) {
  if (op == Op::kProduct) {
    constexpr double kFactors[] = {1, -1, 2, -2, 0.5, -0.5, 4, 0};
    return kFactors[bits % 8];
  }
  return static_cast<double>(static_cast<int>(bits % 63) - 31) / 8;
}

// Never near 0, so that no rounding makes a -0 of it.
double Rounded(uint64_t bits) {
  const double size = 0.25 + static_cast<double>(bits >> 11) * 0x1p-53;
  return (bits & 1) != 0 ? size : -size;
}

// Any bits, and often those that matter.
template <typename T, typename Unsigned>
T AnyBits(uint64_t bits) {
  using Limits = std::numeric_limits<T>;
  constexpr T kSpecial[] = {T(0),
                            -T(0),
                            T(1),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN(),
                            Limits::denorm_min(),
                            Limits::max()};
  const uint64_t rest = bits >> 4;
  if (bits % 16 == 0) return kSpecial[rest % 8];
  return std::bit_cast<T>(static_cast<Unsigned>(rest));
}

double FloatValue(uint64_t bits, const OperationSpec& spec) {
  return spec.values == Values::kExact ? Exact(bits, spec.op) : Rounded(bits);
}

uint16_t ToStored(double v, DType dtype) {
  return Narrow(dtype == DType::kFloat16 ? kHalf : kBfloat16, v);
}

// Any bits of 16, or the special values rounded to them.
uint16_t AnyStored(uint64_t bits, DType dtype) {
  if (bits % 16 != 0) return static_cast<uint16_t>(bits >> 4);
  return ToStored(AnyBits<float, uint32_t>(bits), dtype);
}

template <typename T>
void Put(Bytes* to, size_t i, T v) {
  std::memcpy(to->data() + i * sizeof(T), &v, sizeof(T));
}

}  // namespace

Bytes InputOf(const OperationSpec& spec, int rank) {
  const Signature s = spec.SignatureOf(rank);
  Bytes out(s.Bytes());
  const auto n = static_cast<size_t>(s.Elements());
  const bool any = spec.values == Values::kAnyBits;
  Stream stream(spec.seed + static_cast<uint64_t>(rank) * 0x5851f42d4c957f2d);
  switch (s.dtype) {
    case DType::kFloat32:
      for (size_t i = 0; i < n; ++i) {
        const uint64_t bits = stream.Next();
        Put(&out, i,
            any ? AnyBits<float, uint32_t>(bits)
                : static_cast<float>(FloatValue(bits, spec)));
      }
      break;
    case DType::kFloat64:
      for (size_t i = 0; i < n; ++i) {
        const uint64_t bits = stream.Next();
        Put(&out, i,
            any ? AnyBits<double, uint64_t>(bits) : FloatValue(bits, spec));
      }
      break;
    case DType::kFloat16:
    case DType::kBfloat16:
      for (size_t i = 0; i < n; ++i) {
        const uint64_t bits = stream.Next();
        Put(&out, i,
            any ? AnyStored(bits, s.dtype)
                : ToStored(FloatValue(bits, spec), s.dtype));
      }
      break;
    case DType::kBool:  // any byte but 0 is true
      for (size_t i = 0; i < n; ++i) {
        const uint64_t bits = stream.Next();
        Put(&out, i, static_cast<uint8_t>(bits % 2 == 0 ? 0 : bits >> 8));
      }
      break;
    default:  // integers: any bits
      for (size_t at = 0; at < out.size(); at += 8) {
        const uint64_t v = stream.Next();
        std::memcpy(out.data() + at, &v, std::min<size_t>(8, out.size() - at));
      }
  }
  return out;
}

}  // namespace maypole::properties
