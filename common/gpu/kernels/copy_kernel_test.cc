// The kernels that copy pieces and write a word, run on the host.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/gpu/kernels/kernels.h"
#include "common/gpu/kernels/testing/guarded.h"
#include "common/gpu/kernels/testing/host_kernels.h"

namespace maypole::cuda {
namespace {

struct Size {
  size_t bytes;
  size_t from;  // remainders modulo 16
  size_t to;
};

void CopyAndCheck(const std::vector<Size>& sizes, unsigned blocks,
                  unsigned threads, std::mt19937_64& random) {
  std::vector<Guarded> from, to;
  std::vector<CopiedPiece> pieces;
  for (const Size& size : sizes) {
    from.emplace_back(size.bytes, size.from);
    to.emplace_back(size.bytes, size.to);
    for (size_t i = 0; i < size.bytes; ++i) {
      from.back().data()[i] = static_cast<std::byte>(random());
    }
    pieces.push_back({from.back().device(), to.back().device(), size.bytes});
  }
  CopyArguments arguments = MakeCopyArguments(pieces);
  void* pointers[] = {&arguments};
  SetHostAddress(&GuardedHostAddress);
  FindHostKernel(kCopyKernel)->run(blocks, threads, pointers);
  for (size_t p = 0; p < sizes.size(); ++p) {
    ASSERT_EQ(0, std::memcmp(from[p].data(), to[p].data(), sizes[p].bytes))
        << "piece " << p << ": " << sizes[p].bytes << " bytes from "
        << sizes[p].from << " to " << sizes[p].to;
    ASSERT_TRUE(to[p].GuardsAreWhole()) << "piece " << p;
  }
}

TEST(CopyKernelTest, CopiesEveryByteAtEveryAlignmentAndNoOther) {
  std::mt19937_64 random(1);
  for (size_t from = 0; from < 16; ++from) {
    for (size_t to = 0; to < 16; ++to) {
      for (const size_t bytes : {0, 1, 3, 15, 16, 17, 40, 100}) {
        CopyAndCheck({{bytes, from, to}}, 2, 3, random);
      }
    }
  }
}

// Around the ends of tiles, for each size of words.
TEST(CopyKernelTest, CutsPiecesIntoTiles) {
  std::mt19937_64 random(2);
  for (const size_t to : {0, 5, 4, 2, 1}) {
    for (const size_t bytes :
         {kTileBytes - 1, kTileBytes, kTileBytes + 1, kTileBytes + 15,
          3 * kTileBytes - 7, 3 * kTileBytes + 9}) {
      for (const unsigned blocks : {1, 2, 7}) {
        CopyAndCheck({{bytes, to == 5 ? size_t{5} : 0, to}}, blocks, 64,
                     random);
      }
    }
  }
}

TEST(CopyKernelTest, CopiesManyPiecesAtOnce) {
  std::mt19937_64 random(3);
  for (const unsigned blocks : {1, 3, 64}) {
    std::vector<Size> sizes;
    for (size_t p = 0; p < kMaxPieces; ++p) {
      const size_t bytes = p % 7 == 0   ? 0
                           : p % 5 == 0 ? kTileBytes + random() % 30000
                                        : random() % 300;
      sizes.push_back({bytes, random() % 16, random() % 16});
    }
    CopyAndCheck(sizes, blocks, 32, random);
  }
}

TEST(CopyKernelTest, NoPiecesAreFine) {
  std::mt19937_64 random(4);
  CopyAndCheck({}, 1, 32, random);
}

TEST(CopyKernelTest, WritesAWord) {
  uint64_t words[3] = {1, 2, 3};
  uint64_t address = reinterpret_cast<uint64_t>(&words[1]) + kDeviceBias;
  uint64_t value = 0x0123456789abcdef;
  void* pointers[] = {&address, &value};
  SetHostAddress(&GuardedHostAddress);
  FindHostKernel(kWriteWordKernel)->run(1, 1, pointers);
  EXPECT_EQ(words[0], 1u);
  EXPECT_EQ(words[1], value);
  EXPECT_EQ(words[2], 3u);
}

}  // namespace
}  // namespace maypole::cuda
