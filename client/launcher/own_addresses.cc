#include "client/launcher/own_addresses.h"

#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "common/fd.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kLookMs = 5;
constexpr milliseconds kPreference{300};  // an earlier address may take longer

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;
using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Interfaces AllInterfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) first = nullptr;
  return Interfaces(first, freeifaddrs);
}

// Empty: no address of IP.
std::string Numeric(const sockaddr* address) {
  if (address == nullptr) return "";
  socklen_t size = 0;
  if (address->sa_family == AF_INET) size = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) size = sizeof(sockaddr_in6);
  char host[NI_MAXHOST];
  if (size == 0 || getnameinfo(address, size, host, sizeof host, nullptr, 0,
                               NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

bool IsForOthers(const ifaddrs& i) {
  if ((i.ifa_flags & IFF_UP) == 0 || (i.ifa_flags & IFF_LOOPBACK) != 0) {
    return false;
  }
  if (i.ifa_addr == nullptr || i.ifa_addr->sa_family != AF_INET6) return true;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

Resolved Resolve(const std::string& host, const char* port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port, &hints, &found) != 0) found = nullptr;
  return Resolved(found, freeaddrinfo);
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// A connection under way.
struct Attempt {
  std::string address;
  Fd socket;
  bool failed = false;
};

Attempt StartAttempt(const std::string& address) {
  Attempt attempt{.address = address, .socket = Fd(), .failed = true};
  size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return attempt;
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  Resolved to = Resolve(host, address.c_str() + colon + 1,
                        AI_NUMERICHOST | AI_NUMERICSERV);
  if (to == nullptr) return attempt;
  attempt.socket =
      Fd(socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int result = connect(attempt.socket.get(), to->ai_addr, to->ai_addrlen);
  attempt.failed = result != 0 && errno != EINPROGRESS;
  return attempt;
}

// Whether it is connected; finds out about its failure.
bool IsConnected(Attempt* attempt) {
  pollfd entry = {.fd = attempt->socket.get(), .events = POLLOUT, .revents = 0};
  if (attempt->failed || poll(&entry, 1, 0) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(entry.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  attempt->failed = error != 0;
  return !attempt->failed;
}

struct Look {
  const Attempt* best = nullptr;  // the first that is connected
  bool earlier_open = false;      // one before it (or any) may still come
};

Look LookAt(std::vector<Attempt>* attempts) {
  Look look;
  for (Attempt& attempt : *attempts) {
    if (IsConnected(&attempt)) {
      look.best = &attempt;
      return look;
    }
    if (!attempt.failed) look.earlier_open = true;
  }
  return look;
}

}  // namespace

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  Interfaces all = AllInterfaces();
  for (int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
      if (!IsForOthers(*i) || i->ifa_addr == nullptr ||
          i->ifa_addr->sa_family != family) {
        continue;
      }
      std::string text = Numeric(i->ifa_addr);
      if (!text.empty()) addresses.push_back(text);
    }
  }
  return addresses;
}

bool IsThisMachine(const std::string& name) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof host - 1);
  if (name == "localhost" || name == host) return true;
  Resolved found = Resolve(name, nullptr, 0);
  if (found == nullptr) return false;  // ssh may know it
  Interfaces all = AllInterfaces();
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    if (IsLoopback(a->ai_addr)) return true;
    std::string text = Numeric(a->ai_addr);
    for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
      if (!text.empty() && Numeric(i->ifa_addr) == text) return true;
    }
  }
  return false;
}

Status AddressOfInterface(const std::vector<std::string>& interfaces,
                          std::string* address) {
  Interfaces all = AllInterfaces();
  std::string names;
  for (const std::string& name : interfaces) {
    names += (names.empty() ? "" : ",") + name;
    for (int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
        if (name != i->ifa_name || i->ifa_addr == nullptr ||
            i->ifa_addr->sa_family != family) {
          continue;
        }
        *address = Numeric(i->ifa_addr);
        if (!address->empty()) return Status();
      }
    }
  }
  return Status(Code::kNotFound,
                "no network interface " + names +
                    " with an address (--network-interfaces); ip -br addr "
                    "lists those there are");
}

std::string WithPort(const std::string& address, const std::string& port) {
  bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + port;
}

Status FirstThatAccepts(const std::vector<std::string>& addresses,
                        milliseconds limit, std::string* found) {
  std::vector<Attempt> attempts;
  for (const std::string& a : addresses) attempts.push_back(StartAttempt(a));
  auto deadline = steady_clock::now() + limit;
  std::optional<steady_clock::time_point> answered;
  do {
    Look look = LookAt(&attempts);
    auto now = steady_clock::now();
    if (look.best != nullptr) {
      if (!answered) answered = now;
      if (!look.earlier_open || now - *answered >= kPreference) {
        *found = look.best->address;
        return Status();
      }
    } else if (!look.earlier_open) {
      break;  // all have failed
    }
    poll(nullptr, 0, kLookMs);
  } while (steady_clock::now() < deadline);
  std::string tried;
  for (const std::string& a : addresses) {
    tried += (tried.empty() ? "" : ", ") + a;
  }
  return Status(Code::kUnavailable,
                "none of the coordinator's addresses accepts a connection (" +
                    tried + "): is a firewall in between?");
}

}  // namespace maypole::launcher
