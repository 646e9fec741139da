// Addresses as text: HOST:PORT, and what an IP address says about itself.
//
// A host is a name, an IPv4 address or an IPv6 address ("::1", which may have a
// zone: "fe80::1%eth0"). Before a port an IPv6 address has brackets, since it
// has colons itself; without a port it has none:
//
//   HostPort at;
//   if (!SplitHostPort("[::1]:4001", &at)) ...   // at.host is "::1"
//   JoinHostPort("::1", 4001)                    // "[::1]:4001"
//
// Resolve() asks the name service, unless AI_NUMERICHOST is among its flags,
// and may block as long as that likes.
//
// Thread contract: functions without state.
#ifndef MAYPOLE_COMMON_ADDRESS_H_
#define MAYPOLE_COMMON_ADDRESS_H_

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <string_view>

namespace maypole {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // 0 to 65535
};

// False if the text is not HOST:PORT. Names are not looked up.
bool SplitHostPort(std::string_view text, HostPort* out);
std::string JoinHostPort(std::string_view host, int port);

// "::1" of "[::1]"; others as they are.
std::string WithoutBrackets(const std::string& host);

// An IPv4 or IPv6 address, no name.
bool IsNumericHost(const std::string& host);

// 127.0.0.0/8, also as IPv4 in IPv6, and ::1. Of hosts also localhost, and
// addresses in brackets; other names are not looked up.
bool IsLoopback(const sockaddr* address);
bool IsLoopbackHost(const std::string& host);

// The host of an IPv4 or IPv6 address in digits; empty for others and null.
std::string NumericHost(const sockaddr* address);

struct FreeAddresses {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a host without brackets; null if there are none. Then
// *error, if given, is getaddrinfo's (for gai_strerror). flags: AI_...
Addresses Resolve(const std::string& host, int port, int flags,
                  int* error = nullptr);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_ADDRESS_H_
