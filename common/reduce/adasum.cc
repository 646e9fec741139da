#include "common/reduce/adasum.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/reduce/reduce.h"

namespace maypole {
namespace {

// A combination whose squared norm is this small against its parts' is zero.
constexpr double kZero = 1e-13;
// Elements that are converted at a time: those of a few ranks stay in the
// cache.
constexpr size_t kBlock = 512;
// Sums that do not wait for each other.
constexpr size_t kLanes = 8;

struct Half {
  using Stored = uint16_t;
  static double Load(Stored v) { return HalfToFloat(v); }
  static Stored Store(double v) { return FloatToHalf(static_cast<float>(v)); }
};

struct Brain {
  using Stored = uint16_t;
  static double Load(Stored v) { return Bfloat16ToFloat(v); }
  static Stored Store(double v) {
    return FloatToBfloat16(static_cast<float>(v));
  }
};

template <typename T>
struct Plain {
  using Stored = T;
  static double Load(T v) { return v; }
  static T Store(double v) { return static_cast<T>(v); }
};

// Calls visit(E()) with the element type E of the dtype, if it has one.
template <typename Visit>
void WithElement(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat16:
      return visit(Half());
    case DType::kBfloat16:
      return visit(Brain());
    case DType::kFloat32:
      return visit(Plain<float>());
    case DType::kFloat64:
      return visit(Plain<double>());
    default:
      return;
  }
}

template <typename E>
void Widen(const std::byte* row, size_t begin, size_t n, double* out) {
  if (row == nullptr) {
    std::fill_n(out, n, 0.0);
    return;
  }
  using Stored = typename E::Stored;
  for (size_t i = 0; i < n; ++i) {
    Stored v;
    std::memcpy(&v, row + (begin + i) * sizeof(v), sizeof(v));
    out[i] = E::Load(v);
  }
}

double Dot(const double* a, const double* b, size_t n) {
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  double sum = 0.0;
  for (const double s : sums) sum += s;
  return sum;
}

class Tree {
 public:
  Tree(std::span<const double> products, size_t ranks)
      : products_(products), ranks_(ranks) {}

  // The factors in the Adasum of the ranks from `first` to `end` - 1.
  std::vector<double> Of(size_t first, size_t end) const {
    std::vector<double> a(ranks_);
    if (end - first == 1) {
      a[first] = 1.0;
      return a;
    }
    const size_t middle = first + std::bit_floor(end - first - 1);
    a = Of(first, middle);
    const std::vector<double> b = Of(middle, end);
    const double product = Product(a, b);
    const double of_a = Factor(product, a), of_b = Factor(product, b);
    for (size_t r = 0; r < ranks_; ++r) a[r] = of_a * a[r] + of_b * b[r];
    return a;
  }

 private:
  double Product(const std::vector<double>& a,
                 const std::vector<double>& b) const {
    double sum = 0.0;
    for (size_t i = 0; i < ranks_; ++i) {
      for (size_t j = 0; j < ranks_; ++j) {
        sum += a[i] * products_[i * ranks_ + j] * b[j];
      }
    }
    return sum;
  }

  double Factor(double product, const std::vector<double>& a) const {
    const double norm = Product(a, a);
    double parts = 0.0;
    for (size_t r = 0; r < ranks_; ++r) {
      parts += a[r] * a[r] * products_[r * ranks_ + r];
    }
    // Written so that NaN is not zero.
    return norm <= kZero * parts ? 1.0 : 1.0 - product / (2 * norm);
  }

  const std::span<const double> products_;
  const size_t ranks_;
};

}  // namespace

bool HasAdasum(DType dtype) {
  bool has = false;
  WithElement(dtype, [&](auto) { has = true; });
  return has;
}

void AdasumProducts(DType dtype, std::span<const std::byte* const> rows,
                    size_t elements, double* products) {
  const size_t ranks = rows.size();
  std::fill_n(products, ranks * ranks, 0.0);
  std::vector<double> wide(ranks * kBlock);
  WithElement(dtype, [&]<typename E>(E) {
    for (size_t begin = 0; begin < elements; begin += kBlock) {
      const size_t n = std::min(kBlock, elements - begin);
      for (size_t i = 0; i < ranks; ++i) {
        Widen<E>(rows[i], begin, n, &wide[i * kBlock]);
        for (size_t j = 0; j <= i; ++j) {
          products[i * ranks + j] +=
              Dot(&wide[i * kBlock], &wide[j * kBlock], n);
        }
      }
    }
  });
  for (size_t i = 0; i < ranks; ++i) {
    for (size_t j = 0; j < i; ++j) {
      products[j * ranks + i] = products[i * ranks + j];
    }
  }
}

std::vector<double> AdasumFactors(std::span<const double> products,
                                  size_t ranks) {
  return Tree(products, ranks).Of(0, ranks);
}

void AdasumCombine(DType dtype, std::span<const std::byte* const> rows,
                   std::span<const double> factors, size_t elements,
                   std::byte* output) {
  WithElement(dtype, [&]<typename E>(E) {
    double sum[kBlock], wide[kBlock];
    typename E::Stored stored[kBlock];
    for (size_t begin = 0; begin < elements; begin += kBlock) {
      const size_t n = std::min(kBlock, elements - begin);
      std::fill_n(sum, n, 0.0);
      for (size_t r = 0; r < rows.size(); ++r) {
        Widen<E>(rows[r], begin, n, wide);
        for (size_t i = 0; i < n; ++i) sum[i] += factors[r] * wide[i];
      }
      for (size_t i = 0; i < n; ++i) stored[i] = E::Store(sum[i]);
      std::memcpy(output + begin * sizeof(stored[0]), stored,
                  n * sizeof(stored[0]));
    }
  });
}

}  // namespace maypole
