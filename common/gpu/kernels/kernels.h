// The GPU kernels: their names, arguments and compiled images.
//
// Purpose: all that a caller needs to launch a kernel, without CUDA's headers.
//
//   ReduceArguments arguments = MakeReduceArguments(
//       {.dtype = DType::kFloat32, .inputs = in, .outputs = out,
//        .elements = n});
//   void* pointers[] = {&arguments};
//   // From KernelImages(GroupOf(dtype)) the function with the name
//   // ReduceKernel(dtype, op); BlocksFor(arguments, most) blocks of
//   // kBlockThreads threads.
//
// Kernels, with their arguments:
//
//   ReduceKernel(dtype, op)  ReduceArguments
//   kCopyKernel              CopyArguments
//   kWriteWordKernel         uint64_t address, uint64_t value; one thread
//
// Thread contract: constants and pure functions.
//
// Invariants: a build without CUDA's nvcc also has images; they load, but
// contain no kernel (cuModuleGetFunction: CUDA_ERROR_NOT_FOUND).
#ifndef MAYPOLE_COMMON_GPU_KERNELS_KERNELS_H_
#define MAYPOLE_COMMON_GPU_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/gpu/kernels/arguments.h"
#include "common/types.h"

namespace maypole::cuda {

// Kernels that are loaded together.
enum class KernelGroup {
  kCopy,            // kCopyKernel, kWriteWordKernel
  kReduceFloats,    // float32, float64
  kReduceHalves,    // float16, bfloat16
  kReduceIntegers,  // integers and bool
};
inline constexpr int kKernelGroups = 4;

// What cuModuleLoadData() takes; a text ends with a byte 0.
using KernelImage = std::span<const std::byte>;

// The images of a group, best first. If the driver refuses one, load the next:
// the first is code for some architectures, unknown to older drivers and other
// architectures; then comes PTX, which drivers from CUDA 12.0 on compile: first
// for every architecture from 8.0 on, then for every one from 7.0 on.
std::span<const KernelImage> KernelImages(KernelGroup group);

inline constexpr char kCopyKernel[] = "maypole_copy_pieces";
// For devices whose streams cannot write words themselves. The stream's earlier
// writes are visible to the host before the word is.
inline constexpr char kWriteWordKernel[] = "maypole_write_word";

// An Adasum adds, as in common/reduce. Kernels of types for which an operation
// is the same share a name.
std::string ReduceKernel(DType dtype, Op op);
KernelGroup GroupOf(DType dtype);

// A reduction, by the rules of common/reduce/reduce.h: inputs are multiplied by
// `prescale` and rounded, combined in their order, divided by `divisor` (of an
// average only), multiplied by `postscale`. Factors are for floats; integers
// ignore them.
struct Reduction {
  DType dtype = DType::kFloat32;
  std::span<const uint64_t> inputs;  // addresses; 1 to kMaxReduced
  // 1 to kMaxReduced. An output may be the same array as an input, but must
  // not overlap one partially.
  std::span<const uint64_t> outputs;
  uint64_t elements = 0;
  double prescale = 1.0;
  // Bit k: input k is multiplied by prescale. Clear it for a neutral element
  // that stands in for an input.
  uint64_t prescaled = ~uint64_t{0};
  int64_t divisor = 1;  // 1 to kMaxDivisor
  double postscale = 1.0;
};

// Fast if all addresses have the same remainder modulo kVectorBytes and it is a
// multiple of the element's size; correct for any addresses.
ReduceArguments MakeReduceArguments(const Reduction& reduction);

// At most kMaxPieces pieces, none of which overlaps what another writes. Fast
// if the two addresses of a piece have the same remainder modulo kVectorBytes.
CopyArguments MakeCopyArguments(std::span<const CopiedPiece> pieces);

// The number of blocks that handle all memory at once, at least 1 and at most
// `most`. Any number of blocks is correct.
unsigned BlocksFor(const ReduceArguments& arguments, unsigned most);
unsigned BlocksFor(const CopyArguments& arguments, unsigned most);

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_KERNELS_H_
