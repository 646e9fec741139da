// Signature: what a rank submits, and what all ranks must agree on.
//
// Purpose: one POD that is copied onto the board, put on the wire and hashed;
// and the one place where a mismatch becomes a sentence.
//
// Thread contract: values.
//
// What must be equal on all ranks, by kind (promise 1):
//   all            kind, process set, dtype, device class
//   allreduce      shape, op, prescale, postscale
//   reducescatter  shape, op, prescale, postscale
//   broadcast      shape, root
//   allgather      number of dimensions (at least 1), every dimension but the
//                  first
//   alltoall       as allgather; the splits of each rank are its own
//   barrier        how many unnamed operations of each kind came before, in
//                  shape[1..7]; shape[0] is 0: it has no elements
//   join           nothing else
// Scale factors are equal if their bits are: 0.1 and the next double differ,
// and so do 0.0 and -0.0 (results would differ in their signs). A NaN equals
// itself and no NaN of other bits. Messages show as many digits as it takes to
// tell two factors apart.
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

// Device class of a tensor. What matters for agreement is CPU or GPU, not
// which GPU (that differs by rank).
enum class Device : uint8_t { kCpu = 0, kGpu = 1 };

struct Signature {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kUint8;
  Op op = Op::kSum;
  Device device = Device::kCpu;
  uint8_t dims = 0;
  // A rank that has joined stands aside: it brings nothing (zero rows, or what
  // changes no result), and this is not compared.
  uint8_t aside = 0;
  uint8_t joins = 0;  // joins that the rank has returned from, modulo 256
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

// Checks what can be checked on one rank alone: known numbers, sizes within
// limits, an op that the dtype has. `name` is for the message.
Status CheckSignature(std::string_view name, const Signature& s);

// A copy with everything blanked that ranks need not agree on; equal
// agreements have equal bytes.
Signature AgreedPart(const Signature& s);

// Hash of AgreedPart(): equal on ranks that agree, on any machine of the same
// byte order (FNV-1a, 64 bits).
uint64_t AgreementHash(const Signature& s);

bool Agree(const Signature& a, const Signature& b);

// Of a reducescatter over `ranks` ranks: the rows of the result that the rank
// at `position` of its process set gets. The first shape[0] % ranks get one
// more.
int64_t ScatteredRows(const Signature& s, int ranks, int position);
int64_t FirstScatteredRow(const Signature& s, int ranks, int position);

// A sentence that names the tensor, the ranks and both values of the first
// thing on which they differ, as:
//   allreduce 'loss': mismatched shapes: rank 0 submitted [3], ranks 1,3
//   submitted [4]; every rank must submit the same shape
// or that a broadcast's root stands aside.
// `submitted` holds (global rank, its signature). Empty if all agree.
std::string DescribeMismatch(
    std::string_view name,
    std::span<const std::pair<int, Signature>> submitted);

// What tells operations apart: process set, kind and name, as the key of a
// table. The kind is the number that a peer has sent, known or not.
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
