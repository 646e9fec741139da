// Addresses HOST:PORT as flags have them.
//
// Thread contract: functions; the last three touch the network.
#ifndef MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
#define MAYPOLE_COMMON_PROGRAM_ADDRESS_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace maypole {

struct Address {
  std::string host;  // "[::1]" keeps its brackets
  int port = 0;

  std::string Text() const;
};

// `flag` is for the message.
absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text);

// 127.0.0.0/8, ::1 (with or without brackets), localhost. Other names are not
// looked up.
bool IsLoopbackHost(const std::string& host);
bool IsLoopback(const Address& address);

// gRPC does not say why it cannot listen: tries it and gives the reason
// ("Address already in use"); "unknown reason" if it works.
std::string WhyNotBound(const Address& address);

// "::1" of "[::1]"; others as they are.
std::string WithoutBrackets(const std::string& host);

// A blocking TCP connection to it; invalid: there is none within the time (to
// each address of the name).
Fd ConnectTcp(const Address& address, std::chrono::milliseconds timeout);

// Connects and hangs up, to wake who sleeps in accept.
void Knock(const Address& address);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
