// The arguments of the GPU kernels, as both nvcc and the host compiler see
// them.
//
// Purpose: a launch copies one of these structs to the device, so they hold
// numbers only. Let kernels.h fill them from what the caller knows.
//
// Thread contract: types and constants only.
//
// Invariants: the layout is the same for both compilers, and a struct has at
// most 4 KiB, which is what drivers before CUDA 12.1 pass to a kernel.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_ARGUMENTS_H_
#define MAYPOLE_COMMON_GPU_KERNELS_ARGUMENTS_H_

#include <cstdint>

namespace maypole::cuda {

// Threads of a block, for every kernel but the one that writes a word.
inline constexpr unsigned kBlockThreads = 256;
// What a thread loads or stores at once, if the addresses allow it.
inline constexpr unsigned kVectorBytes = 16;

inline constexpr unsigned kMaxReduced = 64;  // inputs, and outputs
inline constexpr unsigned kMaxPieces = 128;
inline constexpr int64_t kMaxDivisor = 0x7fffffff;

// Elements of a reduction:   | single | vector | vector | ... | single |
//                              head     vectors                 the rest
struct ReduceArguments {
  uint64_t inputs[kMaxReduced];  // addresses
  uint64_t outputs[kMaxReduced];
  uint64_t elements;
  uint64_t head;       // elements before the first vector
  uint64_t vectors;    // 0 if the addresses do not allow vectors
  uint64_t prescaled;  // bit k is set: input k is multiplied by prescale
  double prescale;
  double postscale;
  int32_t divisor;  // used by averages only
  uint32_t input_count;
  uint32_t output_count;
  uint32_t bytewise;  // 1 if an address is not a multiple of an element's size
};
static_assert(sizeof(ReduceArguments) == 1088);

struct CopiedPiece {
  uint64_t from;  // addresses
  uint64_t to;
  uint64_t bytes;
};

struct CopyArguments {
  CopiedPiece pieces[kMaxPieces];
  uint64_t count;
};
static_assert(sizeof(CopyArguments) == 3080);

// A block copies tiles of this size, one after the other. A piece has at least
// one tile, if it is not empty, and a tile belongs to one piece.
inline constexpr uint64_t kTileBytes = 16384;

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_ARGUMENTS_H_
