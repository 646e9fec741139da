#include "common/gpu/kernels/kernels.h"

#include <algorithm>

namespace maypole::cuda {
namespace {

// An unsigned type shares the kernels of those operations that do not depend on
// the sign.
DType SignedOf(DType dtype) {
  if (dtype == DType::kUint8) return DType::kInt8;
  if (dtype == DType::kUint16) return DType::kInt16;
  return dtype;
}

// OR is the sum of bools, and AND their product.
Op OpOfBools(Op op) {
  return op == Op::kMin || op == Op::kProduct ? Op::kProduct : Op::kSum;
}

// True if all addresses have the same remainder modulo `size` as the first
// input.
bool AreAlike(const Reduction& r, uint64_t size) {
  const auto differs = [&](uint64_t address) {
    return (address ^ r.inputs[0]) % size != 0;
  };
  return std::none_of(r.inputs.begin(), r.inputs.end(), differs) &&
         std::none_of(r.outputs.begin(), r.outputs.end(), differs);
}

unsigned BlocksForTiles(uint64_t tiles, unsigned most) {
  return static_cast<unsigned>(
      std::clamp<uint64_t>(tiles, 1, std::max(most, 1u)));
}

}  // namespace

std::string ReduceKernel(DType dtype, Op op) {
  if (op == Op::kAdasum) op = Op::kSum;
  if (dtype == DType::kBool) op = OpOfBools(op);
  if (op == Op::kSum || op == Op::kProduct) dtype = SignedOf(dtype);
  return "maypole_reduce_" + std::string(Name(dtype)) + "_" +
         std::string(Name(op));
}

KernelGroup GroupOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
      return KernelGroup::kReduceFloats;
    case DType::kFloat16:
    case DType::kBfloat16:
      return KernelGroup::kReduceHalves;
    default:
      return KernelGroup::kReduceIntegers;
  }
}

ReduceArguments MakeReduceArguments(const Reduction& r) {
  ReduceArguments a = {};
  std::copy(r.inputs.begin(), r.inputs.end(), a.inputs);
  std::copy(r.outputs.begin(), r.outputs.end(), a.outputs);
  a.input_count = static_cast<uint32_t>(r.inputs.size());
  a.output_count = static_cast<uint32_t>(r.outputs.size());
  a.elements = r.elements;
  a.prescale = r.prescale;
  a.prescaled = r.prescale == 1.0 ? 0 : r.prescaled;
  a.postscale = r.postscale;
  a.divisor = static_cast<int32_t>(r.divisor);

  const uint64_t size = SizeOf(r.dtype);
  const uint64_t head_bytes = (0 - r.inputs[0]) % kVectorBytes;
  a.bytewise = head_bytes % size != 0 || !AreAlike(r, size) ? 1 : 0;
  if (a.bytewise == 0 && AreAlike(r, kVectorBytes)) {
    a.head = std::min(head_bytes / size, r.elements);
    a.vectors = (r.elements - a.head) / (kVectorBytes / size);
  }
  return a;
}

CopyArguments MakeCopyArguments(std::span<const CopiedPiece> pieces) {
  CopyArguments a = {};
  std::copy(pieces.begin(), pieces.end(), a.pieces);
  a.count = pieces.size();
  return a;
}

unsigned BlocksFor(const ReduceArguments& a, unsigned most) {
  const uint64_t threads = a.vectors != 0 ? a.vectors : a.elements;
  return BlocksForTiles((threads + kBlockThreads - 1) / kBlockThreads, most);
}

unsigned BlocksFor(const CopyArguments& a, unsigned most) {
  uint64_t tiles = 0;
  for (uint64_t p = 0; p < a.count; ++p) {
    tiles += (a.pieces[p].bytes + kTileBytes - 1) / kTileBytes;
  }
  return BlocksForTiles(tiles, most);
}

}  // namespace maypole::cuda
