#include "tests/properties/reference.h"

#include <cstring>
#include <type_traits>

#include "common/reduce.h"

namespace maypole::properties {
namespace {

// A cheap stream of random numbers: most of the time goes into values.
class Values {
 public:
  explicit Values(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

// A value whose sums over a few ranks are exact in every floating type, or
// (rounded) one whose sums are not.
double FloatValue(uint64_t bits, bool rounded) {
  if (rounded) return static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
  return static_cast<double>(static_cast<int>(bits % 63) - 31) / 8;
}

uint16_t ToStored(double v, DType dtype) {
  const auto f = static_cast<float>(v);
  return dtype == DType::kFloat16 ? FloatToHalf(f) : FloatToBfloat16(f);
}

float FromStored(uint16_t v, DType dtype) {
  return dtype == DType::kFloat16 ? HalfToFloat(v) : Bfloat16ToFloat(v);
}

template <typename T>
void Put(Bytes* to, size_t i, T v) {
  std::memcpy(to->data() + i * sizeof(T), &v, sizeof(T));
}

template <typename T>
T Get(const Bytes& from, size_t i) {
  T v;
  std::memcpy(&v, from.data() + i * sizeof(T), sizeof(T));
  return v;
}

template <typename T>
T Finished(T sum, const OperationSpec& spec, int ranks) {
  if (spec.op == Op::kAverage)
    sum = static_cast<T>(sum / static_cast<T>(ranks));
  return static_cast<T>(sum * static_cast<T>(spec.postscale));
}

template <typename T>
void SumIntegers(const OperationSpec& spec, const std::vector<Bytes>& inputs,
                 Bytes* out) {
  using U = std::make_unsigned_t<T>;
  const auto ranks = static_cast<int64_t>(inputs.size());
  for (size_t i = 0; i < out->size() / sizeof(T); ++i) {
    U sum = 0;
    for (const Bytes& in : inputs) sum = static_cast<U>(sum + Get<U>(in, i));
    auto result = static_cast<T>(sum);
    if (spec.op == Op::kAverage) result = static_cast<T>(result / ranks);
    Put(out, i, result);
  }
}

template <typename T>
void SumFloats(const OperationSpec& spec, const std::vector<Bytes>& inputs,
               Bytes* out) {
  const T pre = static_cast<T>(spec.prescale);
  for (size_t i = 0; i < out->size() / sizeof(T); ++i) {
    T sum = Get<T>(inputs[0], i) * pre;
    for (size_t r = 1; r < inputs.size(); ++r) {
      sum += Get<T>(inputs[r], i) * pre;
    }
    Put(out, i, Finished(sum, spec, static_cast<int>(inputs.size())));
  }
}

void SumHalves(const OperationSpec& spec, const std::vector<Bytes>& inputs,
               Bytes* out) {
  const auto pre = static_cast<float>(spec.prescale);
  for (size_t i = 0; i < out->size() / 2; ++i) {
    const auto value = [&](size_t r) {
      return FromStored(Get<uint16_t>(inputs[r], i), spec.dtype) * pre;
    };
    float sum = value(0);
    for (size_t r = 1; r < inputs.size(); ++r) sum += value(r);
    const float all = Finished(sum, spec, static_cast<int>(inputs.size()));
    Put(out, i,
        spec.dtype == DType::kFloat16 ? FloatToHalf(all)
                                      : FloatToBfloat16(all));
  }
}

Bytes Reduced(const OperationSpec& spec, const std::vector<Bytes>& inputs) {
  Bytes out(inputs[0].size());
  switch (spec.dtype) {
    case DType::kUint8:
      SumIntegers<uint8_t>(spec, inputs, &out);
      break;
    case DType::kInt8:
      SumIntegers<int8_t>(spec, inputs, &out);
      break;
    case DType::kUint16:
      SumIntegers<uint16_t>(spec, inputs, &out);
      break;
    case DType::kInt16:
      SumIntegers<int16_t>(spec, inputs, &out);
      break;
    case DType::kInt32:
      SumIntegers<int32_t>(spec, inputs, &out);
      break;
    case DType::kInt64:
      SumIntegers<int64_t>(spec, inputs, &out);
      break;
    case DType::kFloat32:
      SumFloats<float>(spec, inputs, &out);
      break;
    case DType::kFloat64:
      SumFloats<double>(spec, inputs, &out);
      break;
    case DType::kFloat16:
    case DType::kBfloat16:
      SumHalves(spec, inputs, &out);
      break;
    case DType::kBool:  // not drawn
      break;
  }
  return out;
}

}  // namespace

Bytes InputOf(const OperationSpec& spec, int rank) {
  const auto n = static_cast<size_t>(spec.Elements(rank));
  Bytes out(n * SizeOf(spec.dtype));
  Values values(spec.seed + static_cast<uint64_t>(rank) * 0x5851f42d4c957f2d);
  switch (spec.dtype) {
    case DType::kFloat32:
      for (size_t i = 0; i < n; ++i) {
        Put(&out, i,
            static_cast<float>(FloatValue(values.Next(), spec.rounded)));
      }
      break;
    case DType::kFloat64:
      for (size_t i = 0; i < n; ++i) {
        Put(&out, i, FloatValue(values.Next(), spec.rounded));
      }
      break;
    case DType::kFloat16:
    case DType::kBfloat16:
      for (size_t i = 0; i < n; ++i) {
        Put(&out, i,
            ToStored(FloatValue(values.Next(), spec.rounded), spec.dtype));
      }
      break;
    default:  // integers: any bits
      for (size_t at = 0; at < out.size(); at += 8) {
        const uint64_t v = values.Next();
        std::memcpy(out.data() + at, &v, std::min<size_t>(8, out.size() - at));
      }
  }
  return out;
}

Bytes ResultOf(const OperationSpec& spec, int ranks) {
  if (spec.kind == Kind::kBroadcast) return InputOf(spec, spec.root);
  std::vector<Bytes> inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(InputOf(spec, r));
  if (spec.kind == Kind::kAllreduce) return Reduced(spec, inputs);
  Bytes all;
  for (const Bytes& in : inputs) all.insert(all.end(), in.begin(), in.end());
  return all;
}

}  // namespace maypole::properties
