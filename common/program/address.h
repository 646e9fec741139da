// Addresses HOST:PORT from flags, and TCP connections to them (common/address.h
// has the functions that libmaypole also needs).
//
// Thread contract: any thread; ConnectTcp() uses the network and blocks.
#ifndef MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
#define MAYPOLE_COMMON_PROGRAM_ADDRESS_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/system/fd.h"

namespace maypole {

struct Address {
  std::string host;  // "[::1]" keeps its brackets
  int port = 0;

  std::string Text() const;
};

// The error message names `flag`.
absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text);

// The addresses of a list with commas between them: at least one, none twice,
// and at most kMaxAddresses.
inline constexpr size_t kMaxAddresses = 16;
absl::StatusOr<std::vector<Address>> ParseAddresses(const std::string& flag,
                                                    const std::string& text);

bool IsLoopback(const Address& address);

// Connects to the address and returns a non-blocking socket; an invalid one if
// there is no connection by the deadline. Resolving the name and trying all its
// addresses share this time. A resolver that has not answered by then keeps a
// detached thread until it answers.
Fd ConnectTcp(const Address& address,
              std::chrono::steady_clock::time_point deadline);

// Milliseconds until the deadline, for poll(); 0 if it has passed.
int MillisLeft(std::chrono::steady_clock::time_point deadline);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ADDRESS_H_
