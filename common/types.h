// Element types, reductions, and kinds of collectives.
//
// The numbers are part of the C ABI, of the board's layout and of the wire
// format: never renumber, only append. kAverage to kProduct are Horovod's
// numbers.
//
// Thread contract: constants and pure functions.
#ifndef MAYPOLE_COMMON_TYPES_H_
#define MAYPOLE_COMMON_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace maypole {

enum class DType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
};
inline constexpr int kDTypes = 11;

enum class Op : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr int kOps = 6;

enum class Kind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,
};
inline constexpr int kKinds = 7;

// What each kind does with the ranks' inputs:
//
//   allreduce      Reduces: one result, the same for all
//   reducescatter  Reduces: each rank gets a part of the result
//   allgather      Gathers: all inputs one after the other, the same for all
//   alltoall       Gathers: each rank gets its part of each input
//   broadcast      neither: the root's input goes to all ranks
//   barrier, join  neither: there are no inputs
//
// An operation that reduces has an Op and scale factors. In one that gathers,
// the first dimension may differ between ranks.
constexpr bool Reduces(Kind k) {
  return k == Kind::kAllreduce || k == Kind::kReducescatter;
}
constexpr bool Gathers(Kind k) {
  return k == Kind::kAllgather || k == Kind::kAlltoall;
}

// True if all ranks get the same result.
constexpr bool HasEqualResults(Kind k) {
  return k == Kind::kAllreduce || k == Kind::kAllgather ||
         k == Kind::kBroadcast;
}

// True for types that NCCL can reduce: it has no 16-bit integers.
constexpr bool HasNcclType(DType d) {
  return d != DType::kInt16 && d != DType::kUint16;
}

// Bytes of one element; 0 for an unknown dtype.
size_t SizeOf(DType dtype);

// "float32", "sum", "allreduce"; "unknown" for an unknown number.
std::string_view Name(DType dtype);
std::string_view Name(Op op);
std::string_view Name(Kind kind);

inline bool IsKnown(DType d) { return static_cast<int>(d) < kDTypes; }
inline bool IsKnown(Op o) { return static_cast<int>(o) < kOps; }
inline bool IsKnown(Kind k) { return static_cast<int>(k) < kKinds; }

}  // namespace maypole

#endif  // MAYPOLE_COMMON_TYPES_H_
