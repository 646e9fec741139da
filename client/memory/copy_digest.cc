#include "client/memory/copy_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace maypole {
namespace {

// A part is read for the digest while the copy still has it in the L2 cache.
constexpr uint64_t kPartBytes = 128 * 1024;
// Independent chains of multiplications, so that they overlap.
constexpr size_t kLanes = 8;
constexpr uint64_t kBlockBytes = kLanes * sizeof(uint64_t);
static_assert(kPartBytes % kBlockBytes == 0);
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio

// Uses both halves of the product, so that no bit of `word` stays in one place,
// where a later word of the lane could undo its effect.
uint64_t Mix(uint64_t lane, uint64_t word) {
  const auto product = static_cast<unsigned __int128>(lane ^ word) * kOdd;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void AddBlocks(const char* data, uint64_t bytes, uint64_t (&lanes)[kLanes]) {
  uint64_t l[kLanes];
  std::copy_n(lanes, kLanes, l);
  for (const char* end = data + bytes; data != end; data += kBlockBytes) {
    uint64_t words[kLanes];
    std::memcpy(words, data, kBlockBytes);
#pragma GCC unroll 8  // else the lanes are not in registers
    for (size_t i = 0; i < kLanes; ++i) l[i] = Mix(l[i], words[i]);
  }
  std::copy_n(l, kLanes, lanes);
}

}  // namespace

uint64_t CopyDigest(void* to, const void* from, uint64_t bytes) {
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kOdd;
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  for (uint64_t at = 0; at < bytes; at += kPartBytes) {
    const uint64_t part = std::min(kPartBytes, bytes - at);
    if (target != nullptr) std::memcpy(target + at, source + at, part);
    const char* data = (target != nullptr ? target : source) + at;
    const uint64_t whole = part / kBlockBytes * kBlockBytes;
    AddBlocks(data, whole, lanes);
    if (whole == part) continue;
    char last[kBlockBytes] = {};
    std::memcpy(last, data + whole, part - whole);
    AddBlocks(last, kBlockBytes, lanes);
  }
  uint64_t digest = bytes;
  for (const uint64_t lane : lanes) digest = Mix(digest, lane);
  return digest ^ (digest >> 32);
}

}  // namespace maypole
