#include "tests/properties/spec/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/properties/spec/narrow_float.h"

namespace maypole::properties {
namespace {

// How the reference computes with each element type: in `Acc`.
template <typename T>
struct Integer {
  using Stored = T;
  using Acc = int64_t;  // wrapped to T when stored
  static Acc Load(T v) { return static_cast<Acc>(v); }
  static T Store(Acc v) { return static_cast<T>(v); }
};
template <typename T>
struct Float {
  using Stored = T;
  using Acc = T;
  static T Load(T v) { return v; }
  static T Store(T v) { return v; }
};
template <const NarrowFormat& format>
struct SixteenBits {
  using Stored = uint16_t;
  using Acc = float;
  static float Load(uint16_t v) { return Widen(format, v); }
  static uint16_t Store(float v) { return Narrow(format, v); }
};
struct Truth {
  using Stored = uint8_t;
  using Acc = bool;
  static bool Load(uint8_t v) { return v != 0; }
  static uint8_t Store(bool v) { return v ? 1 : 0; }
};

template <typename Acc>
Acc Plus(Acc a, Acc b) {
  if constexpr (std::is_same_v<Acc, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<Acc>) {
    return static_cast<Acc>(static_cast<uint64_t>(a) +
                            static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename Acc>
Acc Times(Acc a, Acc b) {
  if constexpr (std::is_same_v<Acc, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<Acc>) {
    return static_cast<Acc>(static_cast<uint64_t>(a) *
                            static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// NaN wins; of equals the first.
template <typename Acc>
Acc Better(Acc a, Acc b, bool smaller) {
  if constexpr (std::is_floating_point_v<Acc>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return (smaller ? b < a : b > a) ? b : a;
}

template <typename Acc>
Acc Combine(Op op, Acc a, Acc b) {
  switch (op) {
    case Op::kMin:
      return Better(a, b, true);
    case Op::kMax:
      return Better(a, b, false);
    case Op::kProduct:
      return Times(a, b);
    default:
      return Plus(a, b);
  }
}

template <typename T>
T Get(const Bytes& from, size_t i) {
  T v;
  std::memcpy(&v, from.data() + i * sizeof(T), sizeof(T));
  return v;
}

template <typename E>
class Reduction {
 public:
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;

  explicit Reduction(const OperationSpec& spec) : spec_(spec) {
    for (const int rank : spec.ranks) {
      inputs_.push_back(spec.IsAside(rank) ? Bytes() : InputOf(spec, rank));
    }
  }

  Bytes All() const {
    const auto n = static_cast<size_t>(Elements());
    Bytes out(n * sizeof(Stored));
    for (size_t i = 0; i < n; ++i) {
      const Stored v = E::Store(ApplyEpilogue(Element(i)));
      std::memcpy(out.data() + i * sizeof(Stored), &v, sizeof(v));
    }
    return out;
  }

 private:
  int64_t Elements() const {
    int64_t n = 1;
    for (const int64_t d : spec_.shape.front()) n *= d;
    return n;
  }

  Acc Input(size_t position, size_t i) const {
    const Acc v = E::Load(Get<Stored>(inputs_[position], i));
    if (spec_.prescale == 1.0) return v;
    if constexpr (std::is_floating_point_v<Acc>) {
      return E::Load(E::Store(v * static_cast<Acc>(spec_.prescale)));
    } else {
      return Limited(static_cast<double>(v) * spec_.prescale);
    }
  }

  // Of integers: rounded toward zero, the nearest that can be stored.
  static Acc Limited(double v) {
    using Limits = std::numeric_limits<Stored>;
    if (v >= static_cast<double>(Limits::max())) return Limits::max();
    if (v <= static_cast<double>(Limits::min())) return Limits::min();
    return static_cast<Acc>(v);
  }

  // Over the nodes, what their ranks have.
  Acc Element(size_t i) const {
    Acc all{};
    bool any = false;
    for (size_t begin = 0, end; begin < spec_.ranks.size(); begin = end) {
      Acc part{};
      bool here = false;
      for (end = begin;
           end < spec_.ranks.size() && spec_.nodes[end] == spec_.nodes[begin];
           ++end) {
        if (spec_.IsAside(spec_.ranks[end])) continue;
        const Acc v = Input(end, i);
        part = here ? Combine(spec_.op, part, v) : v;
        here = true;
      }
      if (!here) continue;
      if (!spec_.within_node()) part = AsNodesPart(part);
      all = any ? Combine(spec_.op, all, part) : part;
      any = true;
    }
    return all;
  }

  // A node's part as it is sent to the others.
  Acc AsNodesPart(Acc part) const {
    if constexpr (std::is_same_v<Acc, float>) {
      const int n = Halvings();
      return std::ldexp(E::Load(E::Store(std::ldexp(part, -n))), n);
    } else {
      return E::Load(E::Store(part));
    }
  }

  // Of float16, parts of a sum that becomes smaller are sent smaller.
  int Halvings() const {
    if (spec_.dtype != DType::kFloat16) return 0;
    if (spec_.op != Op::kSum && spec_.op != Op::kAverage) return 0;
    double factor = std::abs(spec_.postscale);
    if (spec_.op == Op::kAverage) {
      factor /= static_cast<double>(spec_.ranks.size());
    }
    int n = 0;
    for (; factor > 0 && factor < 1; factor *= 2) ++n;
    return n;
  }

  Acc ApplyEpilogue(Acc v) const {
    if constexpr (std::is_same_v<Acc, bool>) {
      return v;
    } else if constexpr (std::is_integral_v<Acc>) {
      const auto wrapped = static_cast<Acc>(E::Store(v));
      const auto divisor =
          static_cast<Acc>(spec_.op == Op::kAverage ? spec_.ranks.size() : 1);
      if (spec_.postscale == 1.0) return wrapped / divisor;
      return Limited(static_cast<double>(wrapped) * spec_.postscale /
                     static_cast<double>(divisor));
    } else {
      if (spec_.op == Op::kAverage) v /= static_cast<Acc>(spec_.ranks.size());
      if (spec_.postscale != 1.0) v *= static_cast<Acc>(spec_.postscale);
      return v;
    }
  }

  const OperationSpec& spec_;
  std::vector<Bytes> inputs_;
};

Bytes Reduced(const OperationSpec& spec) {
  switch (spec.dtype) {
    case DType::kUint8:
      return Reduction<Integer<uint8_t>>(spec).All();
    case DType::kInt8:
      return Reduction<Integer<int8_t>>(spec).All();
    case DType::kUint16:
      return Reduction<Integer<uint16_t>>(spec).All();
    case DType::kInt16:
      return Reduction<Integer<int16_t>>(spec).All();
    case DType::kInt32:
      return Reduction<Integer<int32_t>>(spec).All();
    case DType::kInt64:
      return Reduction<Integer<int64_t>>(spec).All();
    case DType::kFloat32:
      return Reduction<Float<float>>(spec).All();
    case DType::kFloat64:
      return Reduction<Float<double>>(spec).All();
    case DType::kFloat16:
      return Reduction<SixteenBits<kHalf>>(spec).All();
    case DType::kBfloat16:
      return Reduction<SixteenBits<kBfloat16>>(spec).All();
    case DType::kBool:
      return Reduction<Truth>(spec).All();
  }
  return {};
}

size_t RowBytes(const OperationSpec& spec) {
  size_t n = SizeOf(spec.dtype);
  const auto& shape = spec.shape.front();
  for (size_t i = 1; i < shape.size(); ++i) n *= static_cast<size_t>(shape[i]);
  return n;
}

// Rows [begin, begin + rows) of `from`.
void AppendRows(const Bytes& from, size_t row_bytes, int64_t begin,
                int64_t rows, Bytes* to) {
  const auto first =
      static_cast<std::ptrdiff_t>(static_cast<size_t>(begin) * row_bytes);
  const auto length =
      static_cast<std::ptrdiff_t>(static_cast<size_t>(rows) * row_bytes);
  to->insert(to->end(), from.begin() + first, from.begin() + first + length);
}

// The first row of a reducescatter that a rank gets: one after the other, the
// first ranks one more.
int64_t FirstRow(const OperationSpec& spec, int position) {
  const int64_t rows = spec.shape.front()[0];
  const auto n = static_cast<int64_t>(spec.ranks.size());
  int64_t first = 0;
  for (int p = 0; p < position; ++p) first += rows / n + (p < rows % n ? 1 : 0);
  return first;
}

Bytes Gathered(const OperationSpec& spec) {
  Bytes all;
  for (const int rank : spec.ranks) {
    if (spec.IsAside(rank)) continue;
    const Bytes in = InputOf(spec, rank);
    all.insert(all.end(), in.begin(), in.end());
  }
  return all;
}

Bytes Exchanged(const OperationSpec& spec, int rank) {
  const auto me = static_cast<size_t>(spec.PositionOf(rank));
  Bytes all;
  for (size_t from = 0; from < spec.ranks.size(); ++from) {
    if (spec.IsAside(spec.ranks[from])) continue;
    const auto& splits = spec.splits[from];
    int64_t begin = 0;
    for (size_t to = 0; to < me; ++to) begin += splits[to];
    AppendRows(InputOf(spec, spec.ranks[from]), RowBytes(spec), begin,
               splits[me], &all);
  }
  return all;
}

template <typename T, typename IsNan>
void Replace(Bytes* values, T nan, const IsNan& is_nan) {
  for (size_t i = 0; i < values->size() / sizeof(T); ++i) {
    if (is_nan(Get<T>(*values, i))) {
      std::memcpy(values->data() + i * sizeof(T), &nan, sizeof(T));
    }
  }
}

}  // namespace

Bytes ResultOf(const OperationSpec& spec, int rank) {
  switch (spec.kind) {
    case Kind::kBroadcast:
      return InputOf(spec, spec.root);
    case Kind::kAllreduce:
      return Reduced(spec);
    case Kind::kAllgather:
      return Gathered(spec);
    case Kind::kAlltoall:
      return Exchanged(spec, rank);
    case Kind::kReducescatter: {
      Bytes mine;
      AppendRows(Reduced(spec), RowBytes(spec),
                 FirstRow(spec, spec.PositionOf(rank)), ResultRows(spec, rank),
                 &mine);
      return mine;
    }
    default:
      return {};
  }
}

int64_t ResultRows(const OperationSpec& spec, int rank) {
  int64_t rows = 0;
  if (spec.kind == Kind::kReducescatter) {
    const int position = spec.PositionOf(rank);
    const auto n = static_cast<int>(spec.ranks.size());
    return (position + 1 < n ? FirstRow(spec, position + 1)
                             : spec.shape.front()[0]) -
           FirstRow(spec, position);
  }
  if (spec.kind == Kind::kAlltoall) {
    for (const int64_t n : ReceivedSplits(spec, rank)) rows += n;
    return rows;
  }
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (!spec.IsAside(spec.ranks[i])) rows += spec.shape[i][0];
  }
  return rows;
}

std::vector<int64_t> ReceivedSplits(const OperationSpec& spec, int rank) {
  const auto me = static_cast<size_t>(spec.PositionOf(rank));
  std::vector<int64_t> out;
  for (size_t from = 0; from < spec.ranks.size(); ++from) {
    out.push_back(spec.IsAside(spec.ranks[from]) ? 0 : spec.splits[from][me]);
  }
  return out;
}

void SameNans(DType dtype, Bytes* values) {
  switch (dtype) {
    case DType::kFloat32:
      return Replace(values, std::numeric_limits<float>::quiet_NaN(),
                     [](float v) { return std::isnan(v); });
    case DType::kFloat64:
      return Replace(values, std::numeric_limits<double>::quiet_NaN(),
                     [](double v) { return std::isnan(v); });
    case DType::kFloat16:
      return Replace(values, uint16_t{0x7e00},
                     [](uint16_t v) { return IsNan(kHalf, v); });
    case DType::kBfloat16:
      return Replace(values, uint16_t{0x7fc0},
                     [](uint16_t v) { return IsNan(kBfloat16, v); });
    default:
      return;
  }
}

}  // namespace maypole::properties
