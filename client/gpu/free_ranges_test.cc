#include "client/gpu/free_ranges.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace maypole {
namespace {

TEST(FreeRangesTest, TakesTheSmallestThatFits) {
  FreeRanges free;
  free.Add(0, 100);
  free.Add(200, 30);
  free.Add(300, 50);
  uint64_t offset = 0;
  ASSERT_TRUE(free.Take(40, &offset));
  EXPECT_EQ(offset, 300u);
  ASSERT_TRUE(free.Take(30, &offset));
  EXPECT_EQ(offset, 200u);
  EXPECT_FALSE(free.Take(101, &offset));
  EXPECT_EQ(free.largest(), 100u);
}

TEST(FreeRangesTest, NeighboursJoin) {
  FreeRanges free;
  free.Add(0, 10);
  free.Add(20, 10);
  EXPECT_EQ(free.largest(), 10u);
  free.Add(10, 10);
  EXPECT_EQ(free.largest(), 30u);
  uint64_t offset = 0;
  ASSERT_TRUE(free.Take(30, &offset));
  EXPECT_EQ(free.largest(), 0u);
  EXPECT_FALSE(free.Take(1, &offset));
}

// Compares with a map of bytes.
TEST(FreeRangesTest, RangesNeverOverlapAndNothingIsLost) {
  constexpr uint64_t kBytes = 1000;
  std::mt19937 random(3);
  FreeRanges free;
  free.Add(0, kBytes);
  std::vector<bool> used(kBytes);
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (int i = 0; i < 5000; ++i) {
    uint64_t offset = 0;
    const uint64_t bytes = 1 + random() % 60;
    if (random() % 2 == 0 && free.Take(bytes, &offset)) {
      ASSERT_LE(offset + bytes, kBytes);
      for (uint64_t b = offset; b < offset + bytes; ++b) {
        ASSERT_FALSE(used[b]);
        used[b] = true;
      }
      taken.emplace_back(offset, bytes);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [at, size] = taken.back();
      taken.pop_back();
      std::fill_n(used.begin() + static_cast<long>(at), size, false);
      free.Add(at, size);
    }
  }
  for (const auto& [at, size] : taken) free.Add(at, size);
  EXPECT_EQ(free.largest(), kBytes);
}

}  // namespace
}  // namespace maypole
