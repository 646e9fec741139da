#include "tests/gpu/fake_nccl/combine.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/reduce/reduce.h"

namespace maypole::nccl::fake {
namespace {

struct TypeRow {
  const char* name;
  size_t bytes;
};
constexpr TypeRow kRows[kTypes] = {
    {"int8", 1},    {"uint8", 1},   {"int32", 4},   {"uint32", 4},
    {"int64", 8},   {"uint64", 8},  {"float16", 2}, {"float32", 4},
    {"float64", 8}, {"bfloat16", 2}};

// How a type is stored, and in which it is computed.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value Load(Stored v) { return v; }
  static Stored Store(Value v) { return v; }
};
struct Half {
  using Stored = uint16_t;
  using Value = float;
  static Value Load(Stored v) { return HalfToFloat(v); }
  static Stored Store(Value v) { return FloatToHalf(v); }
};
struct Brain {
  using Stored = uint16_t;
  using Value = float;
  static Value Load(Stored v) { return Bfloat16ToFloat(v); }
  static Stored Store(Value v) { return FloatToBfloat16(v); }
};

// Integers wrap around.
template <typename T>
T Add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T Multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename T>
T Apply(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclProd:
      return Multiply(a, b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return Add(a, b);
  }
}

template <typename T>
T Before(ncclRedOp_t op, T value, size_t ranks) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ncclAvg) return value * (T{1} / static_cast<T>(ranks));
  }
  return value;
}

template <typename T>
T After(ncclRedOp_t op, T value, size_t ranks) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ncclAvg) return static_cast<T>(value / static_cast<T>(ranks));
  }
  return value;
}

template <typename Element>
void CombineAs(ncclRedOp_t op, const std::vector<const std::byte*>& from,
               size_t count, std::byte* to) {
  using Stored = typename Element::Stored;
  const auto load = [&](size_t rank, size_t i) {
    Stored stored;
    std::memcpy(&stored, from[rank] + i * sizeof(stored), sizeof(stored));
    return Before(op, Element::Load(stored), from.size());
  };
  for (size_t i = 0; i < count; ++i) {
    auto value = load(0, i);
    for (size_t rank = 1; rank < from.size(); ++rank) {
      value = Apply(op, value, load(rank, i));
    }
    const Stored stored = Element::Store(After(op, value, from.size()));
    std::memcpy(to + i * sizeof(stored), &stored, sizeof(stored));
  }
}

}  // namespace

size_t SizeOf(ncclDataType_t type) { return kRows[type].bytes; }

const char* NameOf(ncclDataType_t type) { return kRows[type].name; }

const char* NameOf(ncclRedOp_t op) {
  constexpr const char* kNames[ncclNumOps] = {"sum", "prod", "max", "min",
                                              "avg"};
  return kNames[op];
}

void Combine(ncclDataType_t type, ncclRedOp_t op,
             const std::vector<const std::byte*>& from, size_t count,
             std::byte* to) {
  switch (type) {
    case ncclInt8:
      return CombineAs<Plain<int8_t>>(op, from, count, to);
    case ncclUint8:
      return CombineAs<Plain<uint8_t>>(op, from, count, to);
    case ncclInt32:
      return CombineAs<Plain<int32_t>>(op, from, count, to);
    case ncclUint32:
      return CombineAs<Plain<uint32_t>>(op, from, count, to);
    case ncclInt64:
      return CombineAs<Plain<int64_t>>(op, from, count, to);
    case ncclUint64:
      return CombineAs<Plain<uint64_t>>(op, from, count, to);
    case ncclFloat16:
      return CombineAs<Half>(op, from, count, to);
    case ncclFloat32:
      return CombineAs<Plain<float>>(op, from, count, to);
    case ncclFloat64:
      return CombineAs<Plain<double>>(op, from, count, to);
    case ncclBfloat16:
      return CombineAs<Brain>(op, from, count, to);
  }
}

}  // namespace maypole::nccl::fake
