// Addresses HOST:PORT as flags have them (common/address.h has the rest).
//
// Thread contract: functions; ConnectTcp() touches the network.
#ifndef MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
#define MAYPOLE_COMMON_PROGRAM_ADDRESS_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/system/fd.h"

namespace maypole {

struct Address {
  std::string host;  // "[::1]" keeps its brackets
  int port = 0;

  std::string Text() const;
};

// `flag` is for the message.
absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text);

bool IsLoopback(const Address& address);

// A TCP connection to it that does not block; invalid: there is none by the
// deadline. The addresses of a name share the time, and its resolution has no
// more either: a thread that still waits for the resolver then is left behind,
// and ends with its answer.
Fd ConnectTcp(const Address& address,
              std::chrono::steady_clock::time_point deadline);

// Milliseconds until the deadline, for poll(); 0: it has passed.
int MillisLeft(std::chrono::steady_clock::time_point deadline);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
