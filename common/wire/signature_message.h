// Converts a Signature to and from the protobuf message in which executors and
// the coordinator exchange it.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_
#define MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_

#include <cstdint>

#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"

namespace maypole {

// Sets all fields except the ranks, which stay unchanged.
void WriteSignature(const Signature& s, proto::LocalSignature* out);

// Converts the message without checking it: the caller calls CheckSignature(),
// which refuses unknown numbers and too many dimensions. (Numbers too large for
// a field become values that CheckSignature() refuses.)
Signature ReadSignature(const proto::LocalSignature& m, uint32_t process_set);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_
