// CopyInBlock: the work of one thread of the kernel that copies pieces.
//
// Purpose: many pieces of any sizes are copied by one launch, by the whole
// grid. Each piece is cut into tiles; the blocks take the tiles of all pieces
// in turn, so that many small pieces are copied at the same time:
//
//   piece 0: | tile 0 | tile 1 |  piece 1: | tile 2 |  piece 2: | tile 3 | ...
//              block 0  block 1              block 2              block 0
//
// A tile is copied in words that are as large as both addresses allow.
//
// Thread contract: any number of threads, in any order or concurrently. A piece
// must not overlap what another piece writes.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_COPY_H_
#define MAYPOLE_COMMON_GPU_KERNELS_COPY_H_

#include <cstdint>

#include "common/gpu/kernels/arguments.h"
#include "common/gpu/kernels/device.h"

namespace maypole::cuda {

// Words that a thread loads before it stores the first.
inline constexpr unsigned kCopiedAtOnce = 4;

// Copies the words [begin, end) of the piece; `thread` is that in the block.
template <typename Word>
MAYPOLE_DEVICE void CopyWords(uint64_t from, uint64_t to, uint64_t begin,
                              uint64_t end, unsigned thread, unsigned threads) {
  for (uint64_t i = begin + thread; i < end; i += kCopiedAtOnce * threads) {
    Word loaded[kCopiedAtOnce] = {};
    MAYPOLE_UNROLL
    for (unsigned c = 0; c < kCopiedAtOnce; ++c) {
      const uint64_t at = i + c * threads;
      if (at < end) loaded[c] = LoadAt<Word>(from + at * sizeof(Word));
    }
    MAYPOLE_UNROLL
    for (unsigned c = 0; c < kCopiedAtOnce; ++c) {
      const uint64_t at = i + c * threads;
      if (at < end) StoreAt<Word>(to + at * sizeof(Word), loaded[c]);
    }
  }
}

// Copies tile `tile` of the piece. The bytes before the first whole word belong
// to its first tile, those after the last word to its last.
template <typename Word>
MAYPOLE_DEVICE void CopyTile(const CopiedPiece& piece, uint64_t tile,
                             unsigned thread, unsigned threads) {
  constexpr uint64_t kWords = kTileBytes / sizeof(Word);
  uint64_t head = (0 - piece.to) % sizeof(Word);
  if (head > piece.bytes) head = piece.bytes;
  const uint64_t words = (piece.bytes - head) / sizeof(Word);
  const uint64_t begin = tile * kWords;
  const uint64_t end = begin + kWords < words ? begin + kWords : words;
  CopyWords<Word>(piece.from + head, piece.to + head, begin, end, thread,
                  threads);
  if constexpr (sizeof(Word) > 1) {
    if (tile == 0) {
      CopyWords<uint8_t>(piece.from, piece.to, 0, head, thread, threads);
    }
    if (begin <= words && words <= begin + kWords) {
      CopyWords<uint8_t>(piece.from, piece.to, head + words * sizeof(Word),
                         piece.bytes, thread, threads);
    }
  }
}

MAYPOLE_DEVICE void CopyInBlock(const CopyArguments& arguments, uint64_t block,
                                uint64_t blocks, unsigned thread,
                                unsigned threads) {
  uint64_t mine = block;  // my next tile, counted from the piece's first
  for (unsigned p = 0; p < arguments.count; ++p) {
    const CopiedPiece& piece = arguments.pieces[p];
    const uint64_t tiles = (piece.bytes + kTileBytes - 1) / kTileBytes;
    const uint64_t difference = piece.from ^ piece.to;
    for (; mine < tiles; mine += blocks) {
      if (difference % sizeof(Vector) == 0) {
        CopyTile<Vector>(piece, mine, thread, threads);
      } else if (difference % sizeof(uint32_t) == 0) {
        CopyTile<uint32_t>(piece, mine, thread, threads);
      } else if (difference % sizeof(uint16_t) == 0) {
        CopyTile<uint16_t>(piece, mine, thread, threads);
      } else {
        CopyTile<uint8_t>(piece, mine, thread, threads);
      }
    }
    mine -= tiles;
  }
}

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_COPY_H_
