// How a Signature travels between executors and the coordinator.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_
#define MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_

#include <cstdint>

#include "common/wire/signature.h"
#include "proto/coordinator.pb.h"

namespace maypole {

// All fields except the ranks, which stay as they are.
void WriteSignature(const Signature& s, proto::LocalSignature* out);

// What the message says, unchecked: the caller asks CheckSignature(), which
// refuses numbers that no kind, dtype, op or device has, and too many
// dimensions. (None of them is cut to a number that would pass.)
Signature ReadSignature(const proto::LocalSignature& m, uint32_t process_set);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_SIGNATURE_MESSAGE_H_
