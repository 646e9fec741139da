// Tests Adasum against its definition, pair by pair.
#include "common/reduce/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/reduce/reduce.h"

namespace maypole {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Pair(const Vector& a, const Vector& b) {
  const double product = Dot(a, b), aa = Dot(a, a), bb = Dot(b, b);
  const double of_a = aa > 0 ? 1 - product / (2 * aa) : 1;
  const double of_b = bb > 0 ? 1 - product / (2 * bb) : 1;
  Vector out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = of_a * a[i] + of_b * b[i];
  return out;
}

Vector ByDefinition(const std::vector<Vector>& in) {
  if (in.size() == 1) return in[0];
  size_t middle = 1;
  while (2 * middle < in.size()) middle *= 2;
  return Pair(ByDefinition({in.begin(), in.begin() + middle}),
              ByDefinition({in.begin() + middle, in.end()}));
}

template <typename T>
std::vector<T> Adasum(DType dtype, const std::vector<std::vector<T>>& in) {
  std::vector<const std::byte*> rows;
  for (const auto& v : in) {
    rows.push_back(reinterpret_cast<const std::byte*>(v.data()));
  }
  const size_t n = in.size();
  std::vector<double> products(n * n, -1.0);
  AdasumProducts(dtype, rows, in[0].size(), products.data());
  std::vector<T> out(in[0].size());
  AdasumCombine(dtype, rows, AdasumFactors(products, n), out.size(),
                reinterpret_cast<std::byte*>(out.data()));
  return out;
}

std::vector<Vector> Random(size_t ranks, size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.7, 1.0);
  std::vector<Vector> in(ranks, Vector(elements));
  for (auto& v : in) {
    for (double& x : v) x = normal(random);
  }
  return in;
}

TEST(AdasumTest, AnyNumberOfRanks) {
  for (size_t ranks = 1; ranks <= 9; ++ranks) {
    for (const size_t elements : {0, 1, 7, 8, 511, 512, 513, 1500}) {
      const auto in = Random(ranks, elements, 1 + ranks);
      const Vector want = ByDefinition(in);
      const Vector got = Adasum(DType::kFloat64, in);
      for (size_t i = 0; i < elements; ++i) {
        ASSERT_NEAR(got[i], want[i], 1e-12) << ranks << " " << elements;
      }
    }
  }
}

TEST(AdasumTest, OtherTypesAreRoundedOnce) {
  const auto in = Random(3, 700, 5);
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<uint16_t>> halves, brains;
  std::vector<Vector> of_floats, of_halves, of_brains;
  for (const Vector& v : in) {
    auto& f = floats.emplace_back();
    auto& h = halves.emplace_back();
    auto& b = brains.emplace_back();
    auto &wf = of_floats.emplace_back(), &wh = of_halves.emplace_back(),
         &wb = of_brains.emplace_back();
    for (const double x : v) {
      wf.push_back(f.emplace_back(static_cast<float>(x)));
      wh.push_back(
          HalfToFloat(h.emplace_back(FloatToHalf(static_cast<float>(x)))));
      wb.push_back(Bfloat16ToFloat(
          b.emplace_back(FloatToBfloat16(static_cast<float>(x)))));
    }
  }
  const auto got = Adasum(DType::kFloat32, floats);
  const auto got_halves = Adasum(DType::kFloat16, halves);
  const auto got_brains = Adasum(DType::kBfloat16, brains);
  const Vector want = ByDefinition(of_floats),
               want_halves = ByDefinition(of_halves),
               want_brains = ByDefinition(of_brains);
  for (size_t i = 0; i < 700; ++i) {
    ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 6e-8 + 1e-12);
    ASSERT_NEAR(HalfToFloat(got_halves[i]), want_halves[i],
                std::abs(want_halves[i]) * 5e-4 + 1e-6);
    ASSERT_NEAR(Bfloat16ToFloat(got_brains[i]), want_brains[i],
                std::abs(want_brains[i]) * 4e-3 + 1e-6);
  }
}

TEST(AdasumTest, EqualOrthogonalOppositeAndZero) {
  EXPECT_EQ(Adasum<double>(DType::kFloat64, {{1, 2}, {1, 2}, {1, 2}}),
            (Vector{1, 2}));
  EXPECT_EQ(Adasum<double>(DType::kFloat64, {{3, 0}, {0, 5}}), (Vector{3, 5}));
  EXPECT_EQ(Adasum<double>(DType::kFloat64, {{0, 0}, {1, 1}, {0, 0}}),
            (Vector{1, 1}));
  const Vector none =
      Adasum<double>(DType::kFloat64, {{1, -1}, {-1, 1}, {1, -1}, {-1, 1}});
  EXPECT_NEAR(none[0], 0, 1e-12);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double x : Adasum<double>(DType::kFloat64, {{nan, 1}, {1, 1}})) {
    EXPECT_TRUE(std::isnan(x));
  }
}

TEST(AdasumTest, ARowThatIsNullIsZeros) {
  const Vector a = {1, 2};
  const std::byte* const rows[] = {reinterpret_cast<const std::byte*>(a.data()),
                                   nullptr};
  Vector products(4, 9.0), out(2);
  AdasumProducts(DType::kFloat64, rows, 2, products.data());
  EXPECT_EQ(products, (Vector{5, 0, 0, 0}));
  AdasumCombine(DType::kFloat64, rows, AdasumFactors(products, 2), 2,
                reinterpret_cast<std::byte*>(out.data()));
  EXPECT_EQ(out, a);
}

TEST(AdasumTest, IsForFloats) {
  for (int d = 0; d < kDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    EXPECT_EQ(HasAdasum(dtype),
              dtype == DType::kFloat16 || dtype == DType::kFloat32 ||
                  dtype == DType::kFloat64 || dtype == DType::kBfloat16);
  }
}

}  // namespace
}  // namespace maypole
