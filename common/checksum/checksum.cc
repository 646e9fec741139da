#include "common/checksum/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace maypole {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kWord = sizeof(uint64_t);

// kTables[n][b]: what byte b contributes when n more bytes follow it.
constexpr auto kTables = [] {
  constexpr uint32_t kCastagnoli = 0x82f63b78;  // bits reversed
  std::array<std::array<uint32_t, 256>, kWord> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    }
    tables[0][b] = crc;
  }
  for (size_t n = 1; n < kWord; ++n) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t crc = tables[n - 1][b];
      tables[n][b] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}();

struct Tables {
  static uint32_t Add(uint32_t crc, uint64_t word) {
    word ^= crc;
    uint32_t next = 0;
    for (size_t i = 0; i < kWord; ++i) {
      next ^= kTables[kWord - 1 - i][word >> 8 * i & 0xff];
    }
    return next;
  }
};

#ifdef __x86_64__
// In assembly, because the compiler refuses the intrinsic in a file that is
// compiled for all processors.
struct Instruction {
  static uint32_t Add(uint32_t crc, uint64_t word) {
    uint64_t wide = crc;
    asm("crc32q %1, %0" : "+r"(wide) : "rm"(word));
    return static_cast<uint32_t>(wide);
  }
};
#endif

uint64_t WordAt(const unsigned char* p, size_t bytes = kWord) {
  uint64_t word = 0;
  std::memcpy(&word, p, bytes);
  return word;
}

template <typename Crc>
uint32_t Compute(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t a = ~0u, b = ~1u, c = ~2u, d = ~3u;  // in registers
  size_t left = bytes;
  for (; left >= 4 * kWord; left -= 4 * kWord, p += 4 * kWord) {
    a = Crc::Add(a, WordAt(p));
    b = Crc::Add(b, WordAt(p + kWord));
    c = Crc::Add(c, WordAt(p + 2 * kWord));
    d = Crc::Add(d, WordAt(p + 3 * kWord));
  }
  for (; left >= kWord; left -= kWord, p += kWord) {
    a = Crc::Add(a, WordAt(p));
  }
  if (left > 0) a = Crc::Add(a, WordAt(p, left));
  // The factors are odd, so nothing is lost. Without them, two flipped bits 40
  // bytes apart would cancel each other, because a CRC is linear.
  uint32_t crc = Crc::Add(~0u, bytes);
  crc = Crc::Add(crc, a);
  crc = Crc::Add(crc, b * 0x9e3779b1u);
  crc = Crc::Add(crc, c * 0x85ebca77u);
  return Crc::Add(crc, d * 0xc2b2ae3du);
}

}  // namespace

uint32_t ChecksumByTables(const void* data, size_t bytes) {
  return Compute<Tables>(data, bytes);
}

uint32_t Checksum(const void* data, size_t bytes) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return Compute<Instruction>(data, bytes);
#endif
  return ChecksumByTables(data, bytes);
}

}  // namespace maypole
