#include "client/memory/copy_digest.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <set>
#include <vector>

namespace maypole {
namespace {

std::vector<char> Random(size_t bytes) {
  std::mt19937_64 random(bytes);
  std::vector<char> data(bytes);
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

TEST(CopyDigestTest, CopiesAndSaysTheSameWithoutACopy) {
  for (const size_t bytes : {0u, 1u, 63u, 64u, 65u, 32768u, 100001u}) {
    const std::vector<char> from = Random(bytes);
    std::vector<char> to(bytes + 1, 'x');
    const uint64_t digest = CopyDigest(to.data(), from.data(), bytes);
    EXPECT_EQ(to.back(), 'x');
    to.pop_back();
    EXPECT_EQ(to, from);
    EXPECT_EQ(CopyDigest(nullptr, from.data(), bytes), digest) << bytes;
    // At another alignment.
    std::vector<char> shifted(bytes + 1);
    EXPECT_EQ(CopyDigest(shifted.data() + 1, from.data(), bytes), digest);
  }
}

TEST(CopyDigestTest, EachBitAndTheSizeCount) {
  std::vector<char> data = Random(200);
  std::set<uint64_t> seen = {CopyDigest(nullptr, data.data(), 200)};
  for (size_t i = 0; i < 200; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      data[i] = static_cast<char>(data[i] ^ (1 << bit));
      EXPECT_TRUE(seen.insert(CopyDigest(nullptr, data.data(), 200)).second);
      data[i] = static_cast<char>(data[i] ^ (1 << bit));
    }
  }
  const std::vector<char> zeros(200);
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    EXPECT_TRUE(seen.insert(CopyDigest(nullptr, zeros.data(), bytes)).second);
  }
}

TEST(CopyDigestTest, OrderCounts) {
  std::vector<char> data = Random(128);
  const uint64_t before = CopyDigest(nullptr, data.data(), 128);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 64);
  const uint64_t in_a_lane = CopyDigest(nullptr, data.data(), 128);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 8);
  EXPECT_NE(in_a_lane, before);
  EXPECT_NE(CopyDigest(nullptr, data.data(), 128), in_a_lane);
}

}  // namespace
}  // namespace maypole
