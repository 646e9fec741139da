// Addresses as text: parses and formats HOST:PORT, and classifies IP addresses.
//
// A host is a name, an IPv4 address or an IPv6 address ("::1", optionally with
// a zone: "fe80::1%eth0"). In HOST:PORT an IPv6 address is in brackets, because
// it contains colons itself; without a port it has no brackets:
//
//   HostPort at;
//   if (!SplitHostPort("[::1]:4001", &at)) ...   // at.host is "::1"
//   JoinHostPort("::1", 4001)                    // "[::1]:4001"
//
// Resolve() asks the name service, unless its flags contain AI_NUMERICHOST, and
// may block for as long as the name service takes.
//
// Thread contract: functions without state; any thread may call them.
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

// Returns "::1" for "[::1]", and any other host unchanged.
std::string WithoutBrackets(const std::string& host);

// True for an IPv4 or IPv6 address, false for a name.
bool IsNumericHost(const std::string& host);

// True for 127.0.0.0/8 (also as an IPv4-mapped IPv6 address) and ::1.
// IsLoopbackHost() also accepts "localhost" and addresses in brackets; it does
// not look up other names.
bool IsLoopback(const sockaddr* address);
bool IsLoopbackHost(const std::string& host);

// The host of an IPv4 or IPv6 address in digits; empty for other address
// families and for null.
std::string NumericHost(const sockaddr* address);

struct FreeAddresses {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a host (given without brackets); null if there are none.
// Sets *error, if given, to getaddrinfo's result (for gai_strerror).
// flags: AI_...
Addresses Resolve(const std::string& host, int port, int flags,
                  int* error = nullptr);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_ADDRESS_H_
