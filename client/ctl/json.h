// A message as JSON in one line: every field, in the order of the .proto, by
// its name there; numbers as numbers (protobuf's own writes 64-bit ones as
// strings).
//
// Thread contract: pure function.
#ifndef MAYPOLE_CLIENT_CTL_JSON_H_
#define MAYPOLE_CLIENT_CTL_JSON_H_

#include <string>

#include "google/protobuf/message.h"

namespace maypole::ctl {

// Of messages with strings, bools, integers, doubles and messages.
std::string Json(const google::protobuf::Message& message);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_JSON_H_
