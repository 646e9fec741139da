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

// A TCP connection to it that does not block; invalid: there is none by the
// deadline. The addresses of a name share the time, and its resolution has no
// more either: a thread that still waits for the resolver then is left behind,
// and ends with its answer.
Fd ConnectTcp(const Address& address,
              std::chrono::steady_clock::time_point deadline);

// Milliseconds until the deadline, for poll(); 0: it has passed.
int MillisLeft(std::chrono::steady_clock::time_point deadline);

// Connects and hangs up, to wake who sleeps in accept.
void Knock(const Address& address);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
