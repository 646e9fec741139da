// All operations on all element types, against a reference, written here, that
// handles one element at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "common/reduce/reduce.h"
#include "common/reduce/testing/any_elements.h"

namespace maypole {
namespace {

constexpr Op kElementOps[] = {Op::kAverage, Op::kSum, Op::kMin, Op::kMax,
                              Op::kProduct};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename V>
V Lesser(V a, V b) {
  if (std::isnan(static_cast<double>(a))) return a;
  if (std::isnan(static_cast<double>(b))) return b;
  return a <= b ? a : b;
}

template <typename V>
V Greater(V a, V b) {
  if (std::isnan(static_cast<double>(a))) return a;
  if (std::isnan(static_cast<double>(b))) return b;
  return a >= b ? a : b;
}

template <typename V>
V Combined(Op op, V a, V b) {
  // Wide enough for any product of two; wrapping keeps the low bits.
  using Wide = std::conditional_t<std::is_integral_v<V>, __int128, V>;
  const Wide x = a, y = b;
  if constexpr (std::is_same_v<V, bool>) {
    return op == Op::kMin || op == Op::kProduct ? a && b : a || b;
  } else if (op == Op::kMin || op == Op::kMax) {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>((op == Op::kMin) == (x < y) ? x : y);
    } else {
      return op == Op::kMin ? Lesser(a, b) : Greater(a, b);
    }
  }
  return static_cast<V>(op == Op::kProduct ? x * y : x + y);
}

template <typename V>
V ApplyEpilogue(V v, const Epilogue& finish) {
  if constexpr (std::is_same_v<V, bool>) return v;
  if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<__int128>(v) / finish.divisor);
  } else {
    return v / static_cast<V>(finish.divisor) * static_cast<V>(finish.scale);
  }
}

template <typename N>
std::vector<typename N::Stored> Reference(
    Op op, const std::vector<std::vector<typename N::Stored>>& in,
    const Epilogue& finish) {
  std::vector<typename N::Stored> out(in[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    typename N::Value v = N::Read(in[0][i]);
    for (size_t k = 1; k < in.size(); ++k) {
      v = Combined(op, v, N::Read(in[k][i]));
    }
    out[i] = N::Write(ApplyEpilogue(v, finish));
  }
  return out;
}

// Equal bits, or both NaN.
template <typename N>
bool Same(typename N::Stored a, typename N::Stored b) {
  if (std::memcmp(&a, &b, sizeof(a)) == 0) return true;
  if constexpr (std::is_floating_point_v<typename N::Value>) {
    return std::isnan(N::Read(a)) && std::isnan(N::Read(b));
  }
  return false;
}

// Memory in which elements lie at an odd address if `shift` is odd.
template <typename T>
class Placed {
 public:
  Placed(const std::vector<T>& values, size_t shift)
      : bytes_(values.size() * sizeof(T) + shift), shift_(shift) {
    if (values.empty()) return;
    std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  std::byte* data() { return bytes_.data() + shift_; }
  T at(size_t i) {
    T v;
    std::memcpy(&v, data() + i * sizeof(T), sizeof(T));
    return v;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t shift_;
};

template <typename N>
void ExpectValues(const std::vector<typename N::Stored>& want,
                  Placed<typename N::Stored>& got, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(Same<N>(want[i], got.at(i)))
        << what << ", element " << i << " of " << want.size() << ": want "
        << +want[i] << ", got " << +got.at(i);
  }
}

// Every way to call a reduction gives the reference's values.
template <typename N>
void Check(DType dtype, Op op,
           const std::vector<std::vector<typename N::Stored>>& in,
           const Epilogue& finish, size_t shift) {
  using T = typename N::Stored;
  const std::vector<T> want = Reference<N>(op, in, finish);
  const std::vector<T> blank(want.size());
  std::vector<Placed<T>> places;
  for (const auto& v : in) places.emplace_back(v, shift);
  std::vector<const std::byte*> inputs;
  for (auto& place : places) inputs.push_back(place.data());
  const size_t n = want.size();
  SCOPED_TRACE(testing::Message()
               << Name(op) << " of " << in.size() << " " << Name(dtype)
               << ", divisor " << finish.divisor << ", shift " << shift);

  Placed<T> a(blank, shift), b(blank, 0), c(blank, shift);
  ReducePortable(dtype, op, inputs, a.data(), n, finish);
  ExpectValues<N>(want, a, "portable");
  std::byte* const outputs[] = {b.data(), c.data()};
  ReduceTo(dtype, op, inputs, outputs, n, finish);
  ExpectValues<N>(want, b, "first output");
  ExpectValues<N>(want, c, "second output");
  // In place, over the last input.
  Reduce(dtype, op, inputs, places.back().data(), n, finish);
  ExpectValues<N>(want, places.back(), "in place");
  places.back() = Placed<T>(in.back(), shift);
  inputs.back() = places.back().data();
  ReducePortable(dtype, op, inputs, places.back().data(), n, finish);
  ExpectValues<N>(want, places.back(), "portable in place");
}

TEST(ReduceOpsTest, EveryOpTypeSizeAndCountOfInputs) {
  ForAllTypes([]<typename N>(DType dtype, N) {
    std::mt19937_64 random(static_cast<uint64_t>(dtype));
    for (const Op op : kElementOps) {
      for (size_t n = 0; n <= 130; ++n) {
        for (size_t count = 1; count <= 5; ++count) {
          Check<N>(dtype, op, AnyInputs<N>(count, n, random),
                   AnyEpilogue<N>(random), n % 2);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

// More elements than the portable kernels take at once.
TEST(ReduceOpsTest, LongerThanABlock) {
  ForAllTypes([]<typename N>(DType dtype, N) {
    std::mt19937_64 random(100 + static_cast<uint64_t>(dtype));
    for (const Op op : kElementOps) {
      for (const size_t n : {1023, 1024, 1025, 2500}) {
        Check<N>(dtype, op, AnyInputs<N>(3, n, random), AnyEpilogue<N>(random),
                 n % 2);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// The result of each way to call it, for 40 copies of an element: enough for
// the vector kernels. Fails unless all results are equal.
template <typename T>
T Of(DType dtype, Op op, const std::vector<T>& elements,
     const Epilogue& finish = {}) {
  constexpr size_t kCopies = 40;
  std::vector<std::vector<T>> in;
  std::vector<const std::byte*> inputs;
  for (const T& v : elements) in.emplace_back(kCopies, v);
  for (const auto& v : in) {
    inputs.push_back(reinterpret_cast<const std::byte*>(v.data()));
  }
  std::vector<T> a(kCopies), b(kCopies);
  Reduce(dtype, op, inputs, reinterpret_cast<std::byte*>(a.data()), kCopies,
         finish);
  ReducePortable(dtype, op, inputs, reinterpret_cast<std::byte*>(b.data()),
                 kCopies, finish);
  for (size_t i = 0; i < kCopies; ++i) {
    EXPECT_TRUE(Same<Number<T>>(a[0], a[i]) && Same<Number<T>>(a[0], b[i]))
        << i << ": " << +a[0] << ", " << +a[i] << ", " << +b[i];
  }
  return a[0];
}

TEST(ReduceOpsTest, OneNanMakesMinAndMaxNan) {
  for (const Op op : {Op::kMin, Op::kMax}) {
    for (size_t at = 0; at < 3; ++at) {
      std::vector<float> f = {1, -2, static_cast<float>(kInfinity)};
      f[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(Of(DType::kFloat32, op, f))) << Name(op) << at;
      std::vector<double> d(f.begin(), f.end());
      EXPECT_TRUE(std::isnan(Of(DType::kFloat64, op, d))) << Name(op) << at;
      std::vector<uint16_t> h, b;
      for (const float v : f) {
        h.push_back(FloatToHalf(v));
        b.push_back(FloatToBfloat16(v));
      }
      EXPECT_TRUE(std::isnan(HalfToFloat(Of(DType::kFloat16, op, h))));
      EXPECT_TRUE(std::isnan(Bfloat16ToFloat(Of(DType::kBfloat16, op, b))));
    }
  }
}

TEST(ReduceOpsTest, OfEqualZerosMinAndMaxTakeTheFirst) {
  for (const Op op : {Op::kMin, Op::kMax}) {
    EXPECT_TRUE(std::signbit(Of<float>(DType::kFloat32, op, {-0.f, 0.f})));
    EXPECT_FALSE(std::signbit(Of<float>(DType::kFloat32, op, {0.f, -0.f})));
    EXPECT_TRUE(
        std::signbit(Of<double>(DType::kFloat64, op, {-0.0, 0.0, 0.0})));
    EXPECT_FALSE(std::signbit(Of<double>(DType::kFloat64, op, {0.0, -0.0})));
    EXPECT_EQ(Of<uint16_t>(DType::kFloat16, op, {0x8000, 0}), 0x8000);
    EXPECT_EQ(Of<uint16_t>(DType::kBfloat16, op, {0, 0x8000}), 0);
  }
}

TEST(ReduceOpsTest, InfinitiesAndSubnormals) {
  const float inf = static_cast<float>(kInfinity), tiny = 1e-45f;
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kMin, {3, -inf, inf}), -inf);
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kMax, {3, -inf, inf}), inf);
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kMin, {2 * tiny, tiny}), tiny);
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kMax, {-2 * tiny, -tiny}), -tiny);
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kProduct, {tiny, 2}), 2 * tiny);
  EXPECT_TRUE(std::isnan(Of<float>(DType::kFloat32, Op::kProduct, {0, inf})));
  EXPECT_EQ(Of<uint16_t>(DType::kFloat16, Op::kMin, {2, 1}), 1);
  EXPECT_EQ(Of<uint16_t>(DType::kFloat16, Op::kProduct, {1, 0x4000}), 2);
}

TEST(ReduceOpsTest, IntegersWrap) {
  EXPECT_EQ(Of<int8_t>(DType::kInt8, Op::kProduct, {127, 2}), -2);
  EXPECT_EQ(Of<int8_t>(DType::kInt8, Op::kProduct, {-3, 5, 7}), -105);
  EXPECT_EQ(Of<uint8_t>(DType::kUint8, Op::kProduct, {255, 255}), 1);
  EXPECT_EQ(Of<uint16_t>(DType::kUint16, Op::kProduct, {65535, 65535}), 1);
  EXPECT_EQ(Of<int16_t>(DType::kInt16, Op::kSum, {32767, 1}), -32768);
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(Of<int32_t>(DType::kInt32, Op::kProduct, {kLeast, -1}), kLeast);
  constexpr int64_t kLeastLong = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Of<int64_t>(DType::kInt64, Op::kProduct, {kLeastLong, -1}),
            kLeastLong);
  EXPECT_EQ(
      Of<int64_t>(DType::kInt64, Op::kProduct, {0x123456789, 0x987654321}),
      static_cast<int64_t>(0x123456789ull * 0x987654321ull));
  EXPECT_EQ(Of<uint8_t>(DType::kUint8, Op::kMax, {1, 200}), 200);
  EXPECT_EQ(Of<int8_t>(DType::kInt8, Op::kMax, {1, -56}), 1);
  EXPECT_EQ(Of<int64_t>(DType::kInt64, Op::kMin, {1, kLeastLong}), kLeastLong);
}

TEST(ReduceOpsTest, EpilogueComesAfterAnyOperation) {
  EXPECT_EQ(Of<int32_t>(DType::kInt32, Op::kAverage, {-1, -4}, {2, 1}), -2);
  EXPECT_EQ(Of<int8_t>(DType::kInt8, Op::kAverage, {-100, -27}, {2, 1}), -63);
  EXPECT_EQ(Of<int16_t>(DType::kInt16, Op::kAverage, {-1, 0, 0}, {3, 1}), 0);
  EXPECT_EQ(Of<float>(DType::kFloat32, Op::kMax, {2, 8}, {1, 0.5}), 4);
  EXPECT_EQ(Of<double>(DType::kFloat64, Op::kProduct, {2, 8}, {4, 0.5}), 2);
  EXPECT_EQ(Of<double>(DType::kFloat64, Op::kAverage, {-1, -4}, {2, 1}), -2.5);
}

// In half arithmetic 32768 x 32768 would be infinite.
TEST(ReduceOpsTest, SixteenBitProductsAreRoundedOnce) {
  const auto h = [](float f) { return FloatToHalf(f); };
  EXPECT_EQ(HalfToFloat(Of<uint16_t>(DType::kFloat16, Op::kProduct,
                                     {h(32768), h(32768), h(0x1p-20f)})),
            1024.f);
  // 1.5078125^2 is just nearer to 146/64 than to 145/64; rounding there would
  // end at 220/64.
  const uint16_t b = FloatToBfloat16(1.5078125f);
  EXPECT_EQ(
      Bfloat16ToFloat(Of<uint16_t>(DType::kBfloat16, Op::kProduct, {b, b, b})),
      219.f / 64);
}

TEST(ReduceOpsTest, BoolsAreOrAndAnd) {
  for (const Op op : {Op::kSum, Op::kMax}) {
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {0, 0}), 0);
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {0, 2}), 1);
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {255, 1}), 1);
  }
  for (const Op op : {Op::kMin, Op::kProduct}) {
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {2, 4}), 1);
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {128, 0}), 0);
    EXPECT_EQ(Of<uint8_t>(DType::kBool, op, {7}), 1);
  }
}

template <typename N>
typename N::Value Neutral(DType dtype, Op op) {
  std::vector<typename N::Stored> out(
      3, N::Write(static_cast<typename N::Value>(7)));
  FillNeutral(dtype, op, reinterpret_cast<std::byte*>(out.data()), 2);
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(out[2], N::Write(static_cast<typename N::Value>(7)));
  return N::Read(out[0]);
}

TEST(ReduceOpsTest, NeutralElements) {
  ForAllTypes([]<typename N>(DType dtype, N) {
    using V = typename N::Value;
    using Limits = std::numeric_limits<V>;
    SCOPED_TRACE(Name(dtype));
    for (const Op op : {Op::kSum, Op::kAverage, Op::kAdasum}) {
      EXPECT_EQ(Neutral<N>(dtype, op), V{0});
    }
    EXPECT_EQ(Neutral<N>(dtype, Op::kProduct), V{1});
    if constexpr (std::is_floating_point_v<V>) {
      EXPECT_EQ(Neutral<N>(dtype, Op::kMin), static_cast<V>(kInfinity));
      EXPECT_EQ(Neutral<N>(dtype, Op::kMax), static_cast<V>(-kInfinity));
    } else {
      EXPECT_EQ(Neutral<N>(dtype, Op::kMin), Limits::max());
      EXPECT_EQ(Neutral<N>(dtype, Op::kMax), Limits::min());
    }
  });
}

// Before, between and after others; -0 becomes +0 in a sum.
TEST(ReduceOpsTest, NeutralElementsChangeNothing) {
  ForAllTypes([]<typename N>(DType dtype, N) {
    using T = typename N::Stored;
    std::mt19937_64 random(300 + static_cast<uint64_t>(dtype));
    for (const Op op : kElementOps) {
      constexpr size_t kElements = 200;
      auto in = AnyInputs<N>(2, kElements, random);
      std::vector<T> neutral(kElements);
      FillNeutral(dtype, op, reinterpret_cast<std::byte*>(neutral.data()),
                  kElements);
      const auto want = Reference<N>(op, in, {});
      for (size_t at = 0; at <= 2; ++at) {
        auto with = in;
        with.insert(with.begin() + at, neutral);
        Check<N>(dtype, op, with, {}, 0);
        const auto got = Reference<N>(op, with, {});
        for (size_t i = 0; i < kElements; ++i) {
          ASSERT_TRUE(Same<N>(want[i], got[i]) ||
                      N::Read(want[i]) == N::Read(got[i]))
              << Name(dtype) << " " << Name(op) << " " << at << " " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace maypole
