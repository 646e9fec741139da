// Addresses HOST:PORT as flags have them.
//
// Thread contract: functions; the last two touch the network of this machine.
#ifndef MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
#define MAYPOLE_COMMON_PROGRAM_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace maypole {

struct Address {
  std::string host;  // "[::1]" keeps its brackets
  int port = 0;

  std::string Text() const;
};

// `flag` is for the message.
absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text);

// 127.0.0.0/8, ::1, localhost.
bool IsLoopback(const Address& address);

// gRPC does not say why it cannot listen: tries it and gives the reason
// ("Address already in use"); "unknown reason" if it works.
std::string WhyNotBound(const Address& address);

// Connects and hangs up, to wake who sleeps in accept.
void Knock(const Address& address);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
