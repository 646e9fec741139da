#include "common/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace maypole {
namespace {

template <typename T>
std::vector<T> SumOf(DType dtype, const std::vector<std::vector<T>>& in,
                     const Epilogue& finish = {}) {
  std::vector<const std::byte*> inputs;
  for (const auto& v : in) {
    inputs.push_back(reinterpret_cast<const std::byte*>(v.data()));
  }
  std::vector<T> out(in[0].size());
  Reduce(dtype, Op::kSum, inputs, reinterpret_cast<std::byte*>(out.data()),
         out.size(), finish);
  return out;
}

// Equal bits, or both NaN: which of two NaNs an addition keeps is the
// compiler's choice.
bool SameButNan(DType dtype, const std::vector<std::byte>& a,
                const std::vector<std::byte>& b) {
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(&a[i], &b[i], size) == 0) continue;
    uint16_t x, y;
    float f, g;
    double p, q;
    switch (dtype) {
      case DType::kFloat16:
      case DType::kBfloat16:
        std::memcpy(&x, &a[i], 2);
        std::memcpy(&y, &b[i], 2);
        f = dtype == DType::kFloat16 ? HalfToFloat(x) : Bfloat16ToFloat(x);
        g = dtype == DType::kFloat16 ? HalfToFloat(y) : Bfloat16ToFloat(y);
        if (!std::isnan(f) || !std::isnan(g)) return false;
        break;
      case DType::kFloat32:
        std::memcpy(&f, &a[i], 4);
        std::memcpy(&g, &b[i], 4);
        if (!std::isnan(f) || !std::isnan(g)) return false;
        break;
      case DType::kFloat64:
        std::memcpy(&p, &a[i], 8);
        std::memcpy(&q, &b[i], 8);
        if (!std::isnan(p) || !std::isnan(q)) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

TEST(ReduceTest, IntegersWrapAndAverageTruncatesTowardZero) {
  EXPECT_EQ(SumOf<uint8_t>(DType::kUint8, {{250, 1}, {10, 2}}),
            (std::vector<uint8_t>{4, 3}));
  EXPECT_EQ((SumOf<int32_t>(DType::kInt32, {{1, 2, -1}, {3, 3, -4}}, {2, 1})),
            (std::vector<int32_t>{2, 2, -2}));
  EXPECT_EQ((SumOf<int64_t>(DType::kInt64,
                            {{std::numeric_limits<int64_t>::max()}, {1}})),
            std::vector<int64_t>{std::numeric_limits<int64_t>::min()});
}

TEST(ReduceTest, FloatsAddInTheOrderOfInputs) {
  const std::vector<std::vector<float>> in = {{1e8f}, {1.f}, {-1e8f}};
  EXPECT_EQ(SumOf<float>(DType::kFloat32, in)[0], (1e8f + 1.f) - 1e8f);
  EXPECT_EQ((SumOf<double>(DType::kFloat64, {{1}, {2}}, {2, 10}))[0], 15.0);
}

TEST(ReduceTest, OutputMayBeAnInputAndAnyAlignment) {
  std::vector<std::byte> raw(4 * 3000 + 1), other(4 * 3000 + 1);
  std::vector<float> a(3000), b(3000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = i, b[i] = 2.f * i;
  std::memcpy(raw.data() + 1, a.data(), 12000);
  std::memcpy(other.data() + 1, b.data(), 12000);
  const std::byte* inputs[] = {raw.data() + 1, other.data() + 1};
  Reduce(DType::kFloat32, Op::kSum, inputs, raw.data() + 1, 3000, {});
  std::memcpy(a.data(), raw.data() + 1, 12000);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], 3.f * i);
}

TEST(ReduceTest, HalfRoundTripsEveryValueAndRoundsToNearestEven) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(f))));
    } else {
      ASSERT_EQ(FloatToHalf(f), h) << f;
    }
  }
  EXPECT_EQ(FloatToHalf(65519.f), 0x7bff);         // largest half
  EXPECT_EQ(FloatToHalf(65520.f), 0x7c00);         // infinity
  EXPECT_EQ(FloatToHalf(1.f + 0x1p-11f), 0x3c00);  // tie to even
  EXPECT_EQ(FloatToHalf(1.f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);  // tie of the smallest subnormal
  EXPECT_EQ(FloatToHalf(-0x1.8p-25f), 0x8001);
}

// Every float between neighbours must go to the nearer half.
TEST(ReduceTest, HalfRoundsLikeTheDefinition) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t h = random() % 0x7bff;
    const float low = HalfToFloat(static_cast<uint16_t>(h));
    const float high = HalfToFloat(static_cast<uint16_t>(h + 1));
    const float t = std::uniform_real_distribution<float>(0, 1)(random);
    const float f = low + (high - low) * t;
    const double mid = (static_cast<double>(low) + high) / 2;
    uint32_t want = f < mid ? h : h + 1;
    if (f == mid) want = h % 2 == 0 ? h : h + 1;
    ASSERT_EQ(FloatToHalf(f), want) << f;
  }
}

TEST(ReduceTest, SixteenBitFloatsAccumulateInFloat32AndRoundOnce) {
  // 2048 + 1 + 1: in half arithmetic each 1 would be lost.
  const auto h = [](float f) { return FloatToHalf(f); };
  EXPECT_EQ(HalfToFloat(SumOf<uint16_t>(DType::kFloat16,
                                        {{h(2048)}, {h(1)}, {h(1)}})[0]),
            2050.f);
  const auto b = [](float f) { return FloatToBfloat16(f); };
  EXPECT_EQ(Bfloat16ToFloat(SumOf<uint16_t>(DType::kBfloat16,
                                            {{b(256)}, {b(1)}, {b(1)}})[0]),
            258.f);
  EXPECT_EQ(b(1.f + 0x1p-8f), 0x3f80);  // tie to even
  EXPECT_TRUE(std::isnan(Bfloat16ToFloat(b(std::nanf("")))));
}

// The vector kernels must give the portable ones' bits, on any input bits.
TEST(ReduceTest, VectorKernelsAgreeWithPortableOnes) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    for (int d = 0; d < kDTypes; ++d) {
      const auto dtype = static_cast<DType>(d);
      if (dtype == DType::kBool) continue;
      const size_t n = random() % 150, k = 1 + random() % 4;
      const size_t bytes = n * SizeOf(dtype);
      std::vector<std::vector<std::byte>> in(k,
                                             std::vector<std::byte>(bytes + 1));
      std::vector<const std::byte*> inputs;
      for (auto& v : in) {
        for (auto& b : v) b = static_cast<std::byte>(random());
        inputs.push_back(v.data() + round % 2);
      }
      Epilogue finish;
      if (random() % 2) finish.divisor = 3;
      const bool is_float =
          dtype == DType::kFloat16 || dtype == DType::kFloat32 ||
          dtype == DType::kFloat64 || dtype == DType::kBfloat16;
      if (is_float && random() % 2) finish.scale = 0.7;
      std::vector<std::byte> want(bytes), a(bytes), b(bytes);
      ReducePortable(dtype, Op::kSum, inputs, want.data(), n, finish);
      std::byte* const outputs[] = {a.data(), b.data()};
      ReduceTo(dtype, Op::kSum, inputs, outputs, n, finish);
      EXPECT_EQ(a, b);
      ASSERT_TRUE(SameButNan(dtype, want, a)) << Name(dtype) << " " << n;
    }
  }
}

template <typename T>
std::vector<T> Scaled(DType dtype, std::vector<T> v, double factor) {
  auto* p = reinterpret_cast<std::byte*>(v.data());
  Scale(dtype, p, p, v.size(), factor);
  return v;
}

TEST(ReduceTest, ScaleMultiplies) {
  EXPECT_EQ(Scaled<float>(DType::kFloat32, {1, 2, 3}, 0.5),
            (std::vector<float>{0.5, 1, 1.5}));
  // Rounded toward zero; a value outside the range becomes its nearest limit.
  EXPECT_EQ(Scaled<int32_t>(DType::kInt32, {7, -7, 3}, 0.5),
            (std::vector<int32_t>{3, -3, 1}));
  EXPECT_EQ(Scaled<uint8_t>(DType::kUint8, {200, 3, 255}, 2.0),
            (std::vector<uint8_t>{255, 6, 255}));
  EXPECT_EQ(Scaled<uint16_t>(DType::kUint16, {200, 0}, -2.0),
            (std::vector<uint16_t>{0, 0}));
  using Limits = std::numeric_limits<int64_t>;
  EXPECT_EQ(
      Scaled<int64_t>(DType::kInt64, {Limits::max(), 1, -1}, 2e19),
      (std::vector<int64_t>{Limits::max(), Limits::max(), Limits::min()}));
  EXPECT_EQ(Scaled<int8_t>(DType::kInt8, {5, 0}, std::nan("")),
            (std::vector<int8_t>{0, 0}));
}

// nodes[n][r] is what rank r of node n has, as float16.
std::vector<uint16_t> OverTwoNodes(
    const std::vector<std::vector<std::vector<uint16_t>>>& nodes,
    const NodesEpilogue& finish) {
  std::vector<std::vector<uint16_t>> parts;
  for (const auto& ranks : nodes) {
    parts.push_back(SumOf<uint16_t>(DType::kFloat16, ranks, finish.on_node));
  }
  return SumOf<uint16_t>(DType::kFloat16, parts, finish.over_nodes);
}

TEST(ReduceTest, AveragesOfFloat16OverNodesHaveNoInfiniteSums) {
  std::mt19937 random(7);
  for (const size_t ranks : {2u, 3u, 6u, 7u, 64u}) {
    for (const double postscale : {1.0, 0.3, 1.5, -0.5, 70.0}) {
      const Epilogue finish = EpilogueOf(Op::kAverage, postscale, ranks);
      const NodesEpilogue split =
          OverNodes(DType::kFloat16, Op::kAverage, finish);
      const double factor = std::abs(postscale) / static_cast<double>(ranks);
      // Of normal numbers without an infinite sum, each bit is the same.
      std::vector<std::vector<std::vector<uint16_t>>> nodes(2);
      std::vector<std::vector<std::vector<uint16_t>>> large(2);
      std::uniform_real_distribution<float> any(1.0f, 500.0f);
      for (size_t r = 0; r < ranks; ++r) {
        std::vector<uint16_t> v(100);
        for (uint16_t& x : v) x = FloatToHalf(any(random));
        nodes[r % 2].push_back(v);
        large[r % 2].push_back({FloatToHalf(60000)});
      }
      EXPECT_EQ(OverTwoNodes(nodes, split), OverTwoNodes(nodes, {{}, finish}))
          << ranks << " ranks, times " << postscale;
      const auto got = OverTwoNodes(large, split);
      const double want = 60000 * postscale;
      if (factor < 1 && std::abs(want) < 65504) {
        EXPECT_NEAR(HalfToFloat(got[0]), want, std::abs(want) * 2e-3)
            << ranks << " ranks, times " << postscale;
      }
    }
  }
}

TEST(ReduceTest, OnlySumsOfFloat16AreSmallerOnTheNodes) {
  const Epilogue half{1, 0.5};
  EXPECT_EQ(OverNodes(DType::kFloat16, Op::kSum, half).on_node.scale, 0.5);
  for (const Op op : {Op::kProduct, Op::kMin, Op::kMax}) {
    EXPECT_TRUE(OverNodes(DType::kFloat16, op, half).on_node.identity());
  }
  for (const DType dtype : {DType::kBfloat16, DType::kFloat32, DType::kInt32}) {
    const NodesEpilogue split = OverNodes(dtype, Op::kAverage, {8, 0.5});
    EXPECT_TRUE(split.on_node.identity());
    EXPECT_EQ(split.over_nodes.divisor, 8);
    EXPECT_EQ(split.over_nodes.scale, 0.5);
  }
  for (const double none : {0.0, 1.0, 4.0, std::nan("")}) {
    EXPECT_TRUE(
        OverNodes(DType::kFloat16, Op::kSum, {1, none}).on_node.identity());
  }
}

TEST(ReduceTest, IntegersAreRoundedOnce) {
  // An average alone divides integers; with a factor it is one product.
  EXPECT_EQ((SumOf<int32_t>(DType::kInt32, {{5, -5, 4}, {2, -2, 4}}, {2, 2.0})),
            (std::vector<int32_t>{7, -7, 8}));
  EXPECT_EQ((SumOf<int32_t>(DType::kInt32, {{48}, {1}}, {49, 3.0})),
            std::vector<int32_t>{3});
  std::vector<std::vector<int16_t>> long_ones(3, std::vector<int16_t>(2000, 9));
  EXPECT_EQ((SumOf<int16_t>(DType::kInt16, long_ones, {1, 0.25})),
            std::vector<int16_t>(2000, 6));
}

}  // namespace
}  // namespace maypole
