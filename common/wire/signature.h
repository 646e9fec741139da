// Signature: describes the operation that a rank submits; all ranks must agree
// on it.
//
// Purpose: one plain struct that is copied to the board, sent over the network
// and hashed; and the only place that turns a mismatch into a message.
//
// Thread contract: values and pure functions.
//
// What must be equal on all ranks, by kind (promise 1):
//   all            kind, process set, dtype, device class
//   allreduce      shape, op, prescale, postscale
//   reducescatter  shape, op, prescale, postscale
//   broadcast      shape, root
//   allgather      number of dimensions (at least 1), every dimension but the
//                  first
//   alltoall       as allgather; each rank has its own splits
//   barrier        how many unnamed operations of each kind came before, in
//                  shape[1..7]; shape[0] is 0: a barrier has no elements
//   join           nothing else
// Scale factors are equal if their bits are equal: 0.1 and the next double
// differ, and so do 0.0 and -0.0 (results would differ in sign). NaNs are equal
// only if their bits are. Messages show as many digits as are needed to
// distinguish two factors.
#ifndef MAYPOLE_COMMON_WIRE_SIGNATURE_H_
#define MAYPOLE_COMMON_WIRE_SIGNATURE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/limits.h"
#include "common/status.h"
#include "common/types.h"

namespace maypole {

// Device class of a tensor. Ranks must agree on CPU or GPU, not on which GPU
// (it differs by rank).
enum class Device : uint8_t { kCpu = 0, kGpu = 1 };

struct Signature {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUint8;
  Op op = Op::kSum;
  Device device = Device::kCpu;
  uint8_t dims = 0;
  // 1: the rank has joined and stands aside: its input is zero rows, or
  // neutral values that change no result. Ranks need not agree on this.
  uint8_t aside = 0;
  uint8_t joins = 0;  // joins from which the rank has returned, modulo 256
  uint8_t padding = 0;
  uint32_t process_set = 0;
  int32_t root = -1;  // global rank; broadcast only
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t shape[kMaxDims] = {0, 0, 0, 0, 0, 0, 0, 0};  // unused ones are 0

  int64_t Elements() const;  // 1 for a scalar
  uint64_t Bytes() const;
  uint64_t RowBytes() const;  // bytes of one step of the first dimension
};
static_assert(sizeof(Signature) == 96);

// Checks what one rank alone can check: known numbers, sizes within the limits,
// an op that supports the dtype. The error message contains `name`.
Status CheckSignature(std::string_view name, const Signature& s);

// A copy in which all fields that ranks need not agree on have a fixed value.
// Two signatures agree if the bytes of their copies are equal.
Signature AgreedPart(const Signature& s);

// Hash of AgreedPart(): equal on ranks that agree, on any machine of the same
// byte order (FNV-1a, 64 bits).
uint64_t AgreementHash(const Signature& s);

bool Agree(const Signature& a, const Signature& b);

// For a reducescatter over `ranks` ranks: how many rows of the result the rank
// at `position` of its process set gets, and the first of them. The first
// shape[0] % ranks ranks get one row more than the others.
int64_t ScatteredRows(const Signature& s, int ranks, int position);
int64_t FirstScatteredRow(const Signature& s, int ranks, int position);

// A message that names the tensor, the first aspect in which the signatures
// differ, and the value of each rank:
//   allreduce 'loss': mismatched shapes: rank 0 submitted [3], ranks 1,3
//   submitted [4]; every rank must submit the same shape
// If all agree: a message if a broadcast's root stands aside, otherwise "".
// `submitted` holds pairs of global rank and signature.
std::string DescribeMismatch(
    std::string_view name,
    std::span<const std::pair<int, Signature>> submitted);

// An operation's identity (process set, kind and name) as the key of a table.
// `kind` may be an unknown number that a peer has sent.
std::string IdentityKey(uint32_t process_set, uint32_t kind,
                        std::string_view name);
inline std::string IdentityKey(uint32_t process_set, Kind kind,
                               std::string_view name) {
  return IdentityKey(process_set, static_cast<uint32_t>(kind), name);
}

// "[2, 3]"
std::string ShapeText(const Signature& s);

// Hash of a name for tables and identity checks (FNV-1a).
uint64_t HashBytes(std::string_view bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_SIGNATURE_H_
