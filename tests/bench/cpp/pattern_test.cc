#include "tests/bench/cpp/pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace maypole::bench {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kSize = 2 * Pattern::kPeriod + 17;  // whole and part windows

std::vector<float> Sum(const Pattern& pattern, int ranks, int64_t round,
                       int64_t tensor) {
  std::vector<float> sum(kSize, 0.0f), one(kSize);
  for (int rank = 0; rank < ranks; ++rank) {
    pattern.Fill(rank, round, tensor, one);
    for (int64_t i = 0; i < kSize; ++i) sum[i] += one[i];
  }
  return sum;
}

TEST(Pattern, SumsAreExactAndInRange) {
  const Pattern pattern(kRanks);
  for (int64_t round : {0, 1, 65520, 1000000}) {
    EXPECT_FALSE(pattern.Check(round, 160, Sum(pattern, kRanks, round, 160)));
  }
  std::vector<float> values(kSize);
  pattern.Fill(2, 3, 4, values);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_EQ(*low, -1024);
  EXPECT_EQ(*high, 1023);
}

TEST(Pattern, ASumThatIsReducedAgainIsMultiplied) {
  const Pattern pattern(kRanks);
  std::vector<float> sum = Sum(pattern, kRanks, 5, 0);
  const float factor = std::pow(kRanks, 24);
  for (float& value : sum) value *= factor;
  EXPECT_FALSE(pattern.Check(5, 0, sum, factor));
  EXPECT_TRUE(pattern.Check(5, 0, sum));
  sum[70000] = std::nextafter(sum[70000], 0.0f);
  const auto wrong = pattern.Check(5, 0, sum, factor);
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->index, 70000);
}

TEST(Pattern, InputsChangeWithRankRoundAndTensor) {
  const Pattern pattern(kRanks);
  const auto input = [&](int rank, int round, int tensor) {
    std::vector<float> values(1000);
    pattern.Fill(rank, round, tensor, values);
    return values;
  };
  const std::vector<float> base = input(0, 0, 0);
  EXPECT_EQ(input(0, 0, 0), base);
  EXPECT_NE(input(1, 0, 0), base);
  EXPECT_NE(input(0, 1, 0), base);
  EXPECT_NE(input(0, 0, 1), base);
}

TEST(Pattern, OneChangedElementIsFound) {
  const Pattern pattern(kRanks);
  const std::vector<float> right = Sum(pattern, kRanks, 5, 6);
  for (int64_t i :
       {int64_t{0}, Pattern::kPeriod - 1, Pattern::kPeriod, kSize - 1}) {
    std::vector<float> result = right;
    result[i] += 1;
    const auto wrong = pattern.Check(5, 6, result);
    ASSERT_TRUE(wrong);
    EXPECT_EQ(wrong->index, i);
    EXPECT_EQ(wrong->got, right[i] + 1);
    EXPECT_EQ(wrong->expected, right[i]);
  }
}

TEST(Pattern, NotANumberIsWrong) {
  const Pattern pattern(kRanks);
  std::vector<float> result = Sum(pattern, kRanks, 5, 6);
  result[7] = std::numeric_limits<float>::quiet_NaN();
  const auto wrong = pattern.Check(5, 6, result);
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->index, 7);
}

TEST(Pattern, MistakesOfALibraryAreFound) {
  const Pattern pattern(kRanks);
  const std::vector<float> right = Sum(pattern, kRanks, 5, 6);
  EXPECT_TRUE(pattern.Check(6, 6, right)) << "an older round";
  EXPECT_TRUE(pattern.Check(5, 7, right)) << "another tensor";
  EXPECT_TRUE(pattern.Check(5, 6, Sum(pattern, kRanks - 1, 5, 6)))
      << "without a rank";
  std::vector<float> input(kSize);
  pattern.Fill(1, 5, 6, input);
  EXPECT_TRUE(pattern.Check(5, 6, input)) << "nothing done";
  std::vector<float> swapped = right;
  std::swap_ranges(swapped.begin(), swapped.begin() + 4096,
                   swapped.begin() + 8192);
  EXPECT_EQ(pattern.Check(5, 6, swapped)->index, 0) << "chunks exchanged";
}

}  // namespace
}  // namespace maypole::bench
