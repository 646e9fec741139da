#include "tests/gpu/probe/lab/samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "common/reduce/reduce.h"

namespace maypole::probe {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
const std::vector<uint64_t> kSeeds = {3, 4, 5, 6, 7, 8, 9, 10};

std::vector<std::byte> CpuSum(DType dtype, size_t inputs, Range range) {
  std::vector<std::vector<std::byte>> encoded;
  std::vector<const std::byte*> pointers;
  for (size_t i = 0; i < inputs; ++i) {
    encoded.push_back(Encode({dtype, kSeeds[i]}, range));
    pointers.push_back(encoded.back().data());
  }
  std::vector<std::byte> out(range.count * SizeOf(dtype));
  Reduce(dtype, Op::kSum, pointers, out.data(), range.count, Epilogue());
  return out;
}

SumCheck Check(DType dtype, size_t inputs, Range range,
               const std::vector<std::byte>& got) {
  SumCheck check;
  CheckSums(dtype, {kSeeds.data(), inputs}, range, got.data(), &check);
  return check;
}

TEST(SamplesTest, PatternsRepeatAfterAPeriodAndDifferWithinIt) {
  for (const DType dtype : kTypes) {
    const Pattern pattern = {dtype, 3};
    for (const uint64_t i : {uint64_t{0}, uint64_t{77}, kPeriod - 1}) {
      EXPECT_EQ(ValueAt(pattern, i), ValueAt(pattern, i + kPeriod));
      EXPECT_EQ(ValueAt(pattern, i), ValueAt(pattern, i + 100 * kPeriod));
    }
    int equal = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
      equal += ValueAt(pattern, i) == ValueAt(pattern, i + (1 << 20));
      equal += ValueAt(pattern, i) == ValueAt({dtype, 4}, i);
    }
    EXPECT_LT(equal, 20);
  }
}

TEST(SamplesTest, ValuesAreWhatIsEncoded) {
  const auto bytes = Encode({DType::kFloat16, 9}, {5, 100});
  ASSERT_EQ(bytes.size(), 200u);
  for (uint64_t i = 0; i < 100; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &bytes[2 * i], 2);
    EXPECT_EQ(ValueAt({DType::kFloat16, 9}, 5 + i), HalfToFloat(half));
  }
}

TEST(SamplesTest, ValuesHaveSignsAndManyMagnitudes) {
  std::set<int> exponents;
  int negative = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const double value = ValueAt({DType::kFloat32, 1}, i);
    EXPECT_LE(std::abs(value), 4.0);
    negative += value < 0;
    exponents.insert(std::ilogb(value));
  }
  EXPECT_GT(negative, 400);
  EXPECT_LT(negative, 600);
  EXPECT_GE(exponents.size(), 8u);
}

TEST(SamplesTest, SmallResultsAreLookedAtAsAWhole) {
  const auto ranges = SampleRanges(kSampled);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].begin, 0u);
  EXPECT_EQ(ranges[0].count, kSampled);
}

TEST(SamplesTest, GreatResultsAtBeginningMiddleEndAndOddPlaces) {
  for (const uint64_t elements :
       {kSampled + 1, uint64_t{256} << 20, (uint64_t{512} << 20) - 5}) {
    uint64_t count = 0, odd = 0;
    bool beginning = false, middle = false, end = false;
    for (const Range& range : SampleRanges(elements)) {
      ASSERT_LE(range.begin + range.count, elements);
      count += range.count;
      odd += range.begin % 2;
      beginning |= range.begin == 0;
      middle |= range.begin <= elements / 2 &&
                elements / 2 < range.begin + range.count;
      end |= range.begin + range.count == elements;
    }
    EXPECT_GE(count, kSampled);
    EXPECT_GE(odd, 64u);
    EXPECT_TRUE(beginning && middle && end);
  }
}

TEST(SamplesTest, SumsOfTheCpuAreRight) {
  const Range range = {4093, 20000};
  for (const DType dtype : kTypes) {
    for (const size_t inputs : {1, 2, 4, 8}) {
      const SumCheck check =
          Check(dtype, inputs, range, CpuSum(dtype, inputs, range));
      EXPECT_EQ(check.wrong, std::nullopt);
      EXPECT_EQ(check.checked, range.count);
      EXPECT_EQ(check.other_bits, 0u);
      EXPECT_LE(check.worst, 1.0);
      // The bound is no wide one: with rounding, somebody comes near it.
      if (inputs > 1) {
        EXPECT_GT(check.worst, 0.3) << Name(dtype) << inputs;
      }
    }
  }
}

TEST(SamplesTest, OneWrongElementIsFound) {
  const Range range = {1001, 500};
  for (const DType dtype : kTypes) {
    std::vector<std::byte> got = CpuSum(dtype, 4, range);
    // A step in the mantissa that is more than a rounding, at element 123.
    got[123 * SizeOf(dtype)] ^= std::byte{8};
    const SumCheck check = Check(dtype, 4, range, got);
    ASSERT_TRUE(check.wrong.has_value());
    EXPECT_NE(check.wrong->find("element 1124"), std::string::npos)
        << *check.wrong;
    EXPECT_EQ(check.other_bits, 1u);
  }
}

TEST(SamplesTest, NanIsWrong) {
  const Range range = {0, 10};
  std::vector<std::byte> got = CpuSum(DType::kFloat32, 2, range);
  const float nan = NAN;
  std::memcpy(&got[12], &nan, 4);
  const SumCheck check = Check(DType::kFloat32, 2, range, got);
  ASSERT_TRUE(check.wrong.has_value());
  EXPECT_NE(check.wrong->find("element 3"), std::string::npos);
}

TEST(SamplesTest, AnInputTooFewOrInAnotherPlaceIsWrong) {
  const Range range = {0, 1000};
  for (const DType dtype : kTypes) {
    EXPECT_TRUE(Check(dtype, 8, range, CpuSum(dtype, 7, range)).wrong);
    EXPECT_TRUE(
        Check(dtype, 2, range, CpuSum(dtype, 2, {1 << 20, 1000})).wrong);
  }
}

TEST(SamplesTest, BoundsByHand) {
  EXPECT_EQ(ErrorBound(DType::kFloat32, 1, 5, 5), 0);
  // One rounding to float32 of at most 2^-24 of 8.
  EXPECT_NEAR(ErrorBound(DType::kFloat32, 2, 2, 8), std::ldexp(8, -24), 1e-12);
  EXPECT_NEAR(ErrorBound(DType::kBfloat16, 1, 4, 4), std::ldexp(4, -8), 1e-9);
  EXPECT_NEAR(ErrorBound(DType::kFloat16, 1, 4, 4), std::ldexp(4, -11), 1e-9);
  EXPECT_EQ(ErrorBound(DType::kFloat16, 1, 0, 0), std::ldexp(1, -25));
}

}  // namespace
}  // namespace maypole::probe
