// The texts of users in the messages between executors and the coordinator.
//
// Such a text (a path, an error, which may quote anything) need not be UTF-8. A
// side that speaks only versions before kTextsOfBytes (versions.h) parses it as
// a protobuf string, and the whole message fails if it is none. So what is sent
// to such a side is made UTF-8 first.
//
//   if (version < kTextsOfBytes) MakeTextsUtf8(&message);
//
// (ExecutorHello.token is not among them: it is sent before the version is
// agreed, and another token is no use.)
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_WIRE_TEXTS_H_
#define MAYPOLE_COMMON_WIRE_TEXTS_H_

#include "proto/coordinator.pb.h"

namespace maypole {

// Returns true if the message has changed.
bool MakeTextsUtf8(proto::ExecutorMessage* message);
bool MakeTextsUtf8(proto::CoordinatorMessage* message);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_TEXTS_H_
