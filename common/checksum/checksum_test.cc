#include "common/checksum/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <vector>

namespace maypole {
namespace {

// Bit by bit, from the definition.
uint32_t Crc32c(uint32_t crc, uint64_t word) {
  for (int bit = 0; bit < 64; ++bit, word >>= 1) {
    const bool one = ((crc ^ word) & 1) != 0;
    crc = crc >> 1 ^ (one ? 0x82f63b78 : 0);
  }
  return crc;
}

uint32_t Expected(const std::vector<unsigned char>& data) {
  std::array<uint32_t, 4> lanes = {~0u, ~1u, ~2u, ~3u};
  const size_t whole = data.size() / 32 * 32;
  for (size_t at = 0; at < data.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, &data[at], std::min<size_t>(8, data.size() - at));
    uint32_t& lane = lanes[at < whole ? at / 8 % 4 : 0];
    lane = Crc32c(lane, word);
  }
  uint32_t crc = Crc32c(~0u, data.size());
  crc = Crc32c(crc, lanes[0]);
  crc = Crc32c(crc, lanes[1] * 0x9e3779b1u);
  crc = Crc32c(crc, lanes[2] * 0x85ebca77u);
  return Crc32c(crc, lanes[3] * 0xc2b2ae3du);
}

std::vector<unsigned char> Data(size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(i * 167 + i / 7);
  }
  return data;
}

// The test's own function gives the known answer of CRC-32C.
TEST(ChecksumTest, TheReferenceIsCrc32c) {
  uint64_t text = 0;
  std::memcpy(&text, "12345678", 8);
  EXPECT_EQ(~Crc32c(~0u, text), 0x6087809au);
}

TEST(ChecksumTest, TheInstructionAndTheTablesAgreeWithTheDefinition) {
  for (const size_t bytes : {0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 100, 4099}) {
    const std::vector<unsigned char> data = Data(bytes);
    EXPECT_EQ(Checksum(data.data(), bytes), Expected(data)) << bytes;
    EXPECT_EQ(ChecksumByTables(data.data(), bytes), Expected(data)) << bytes;
  }
}

TEST(ChecksumTest, EveryFlippedBitChangesIt) {
  std::vector<unsigned char> data = Data(101);
  std::set<uint32_t> seen = {Checksum(data.data(), data.size())};
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    seen.insert(Checksum(data.data(), data.size()));
    data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
  EXPECT_EQ(seen.size(), 1 + 101 * 8);
}

TEST(ChecksumTest, ZerosOfOtherLengthsDiffer) {
  const std::vector<unsigned char> zeros(64);
  std::set<uint32_t> seen;
  for (size_t bytes = 0; bytes <= 64; ++bytes) {
    seen.insert(Checksum(zeros.data(), bytes));
  }
  EXPECT_EQ(seen.size(), 65u);
}

TEST(ChecksumTest, DoesNotDependOnWhereTheDataLies) {
  std::vector<unsigned char> room(80);
  const std::vector<unsigned char> data = Data(64);
  for (size_t at = 0; at < 16; ++at) {
    std::memcpy(&room[at], data.data(), data.size());
    EXPECT_EQ(Checksum(&room[at], 64), Checksum(data.data(), 64));
  }
}

}  // namespace
}  // namespace maypole
