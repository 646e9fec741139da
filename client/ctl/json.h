// Formats a message as one line of JSON, as protobuf defines it: all fields, in
// the order and with the names of the .proto file; 64-bit integers are strings.
//
// Thread contract: pure function.
#ifndef MAYPOLE_CLIENT_CTL_JSON_H_
#define MAYPOLE_CLIENT_CTL_JSON_H_

#include <string>

#include "google/protobuf/message.h"

namespace maypole::ctl {

std::string Json(const google::protobuf::Message& message);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_JSON_H_
