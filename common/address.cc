#include "common/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "common/parse.h"

namespace maypole {
namespace {

bool IsLoopback(const in_addr& v4) {
  return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool IsLoopback(const in6_addr& v6) {
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

}  // namespace

bool SplitHostPort(std::string_view text, HostPort* out) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool bracketed =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
  } else if (host.empty() || host.find_first_of(":[]") != host.npos) {
    return false;
  }
  if (!ParseNumber(port, 0, 65535, &out->port)) return false;
  out->host = host;
  return true;
}

std::string JoinHostPort(std::string_view host, int port) {
  const bool v6 = host.find(':') != host.npos;
  std::string out = v6 ? "[" : "";
  out += host;
  return out + (v6 ? "]:" : ":") + std::to_string(port);
}

std::string WithoutBrackets(const std::string& host) {
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

bool IsNumericHost(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return host.find('\0') == host.npos &&
         (inet_pton(AF_INET, host.c_str(), &v4) == 1 ||
          inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) ==
              1);
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return IsLoopback(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
  return address->sa_family == AF_INET6 &&
         IsLoopback(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool IsLoopbackHost(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return IsLoopback(v4);
  return inet_pton(AF_INET6, WithoutBrackets(host).c_str(), &v6) == 1 &&
         IsLoopback(v6);
}

std::string NumericHost(const sockaddr* address) {
  if (address == nullptr) return "";
  socklen_t size = 0;
  if (address->sa_family == AF_INET) size = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) size = sizeof(sockaddr_in6);
  char host[NI_MAXHOST];
  if (size == 0 || getnameinfo(address, size, host, sizeof(host), nullptr, 0,
                               NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

Addresses Resolve(const std::string& host, int port, int flags, int* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int result =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != nullptr) *error = result;
  return Addresses(result == 0 ? found : nullptr);
}

}  // namespace maypole
