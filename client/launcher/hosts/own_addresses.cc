#include "client/launcher/hosts/own_addresses.h"

#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/address.h"
#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kLookMs = 5;
// How long an address earlier in the list may take longer than a later one.
constexpr milliseconds kPreference{300};

bool IsForOthers(const ifaddrs& i) {
  if ((i.ifa_flags & IFF_UP) == 0 || (i.ifa_flags & IFF_LOOPBACK) != 0) {
    return false;
  }
  if (i.ifa_addr->sa_family != AF_INET6) return true;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(i.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

// The addresses of the wanted interfaces, IPv4 before IPv6.
template <typename Wanted>
std::vector<std::string> AddressesOf(const Wanted& wanted) {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first,
                                                             freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family ||
          !wanted(*i)) {
        continue;
      }
      std::string text = NumericHost(i->ifa_addr);
      if (!text.empty()) addresses.push_back(std::move(text));
    }
  }
  return addresses;
}

// Begins to connect. Returns no socket if that fails at once.
Fd StartToConnect(const std::string& address) {
  HostPort at;
  if (!SplitHostPort(address, &at)) return Fd();
  const Addresses to = Resolve(at.host, at.port, AI_NUMERICHOST);
  if (to == nullptr) return Fd();
  Fd fd(socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int result = connect(fd.get(), to->ai_addr, to->ai_addrlen);
  return result == 0 || errno == EINPROGRESS ? std::move(fd) : Fd();
}

// Returns whether it is connected; closes it if it cannot be.
bool IsConnected(Fd* fd) {
  pollfd entry = {.fd = fd->get(), .events = POLLOUT, .revents = 0};
  if (poll(&entry, 1, 0) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(entry.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) fd->Reset();
  return error == 0;
}

}  // namespace

std::vector<std::string> OwnAddresses() { return AddressesOf(IsForOthers); }

std::string AnyAddress() {
  const Fd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  const bool six =
      fd.valid() &&
      bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0;
  return six ? "[::]" : "0.0.0.0";
}

bool IsThisMachine(const std::string& name) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof host - 1);
  if (name == "localhost" || name == host) return true;
  const Addresses found = Resolve(name, 0, 0);
  if (found == nullptr) return false;  // ssh may know it
  const std::vector<std::string> own =
      AddressesOf([](const ifaddrs&) { return true; });
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    if (IsLoopback(a->ai_addr)) return true;
    const std::string text = NumericHost(a->ai_addr);
    if (std::find(own.begin(), own.end(), text) != own.end()) return true;
  }
  return false;
}

Status AddressesOfInterfaces(const std::vector<std::string>& interfaces,
                             std::string* addresses) {
  std::vector<std::string> all;
  for (const std::string& name : interfaces) {
    const std::vector<std::string> found =
        AddressesOf([&](const ifaddrs& i) { return name == i.ifa_name; });
    if (!found.empty()) all.push_back(found.front());
  }
  *addresses = absl::StrJoin(all, ",");
  if (!all.empty()) return Status();
  return Status(Code::kNotFound,
                "no network interface " + absl::StrJoin(interfaces, ",") +
                    " with an address (--network-interfaces); run 'ip -br "
                    "addr' to list the interfaces");
}

std::vector<std::string> ResolveForOthers(
    const std::vector<std::string>& addresses) {
  std::vector<std::string> out;
  // A head without any network publishes only this numeric address.
  const bool no_network =
      addresses.size() == 1 &&
      addresses[0].starts_with(std::string(kLoopbackAddress) + ":");
  for (const std::string& address : addresses) {
    HostPort at;
    if (!SplitHostPort(address, &at)) continue;
    const Addresses found = Resolve(at.host, at.port, 0);
    for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
      const std::string host = NumericHost(a->ai_addr);
      if (!host.empty() && (no_network || !IsLoopback(a->ai_addr))) {
        out.push_back(JoinHostPort(host, at.port));
      }
    }
  }
  return out;
}

Status FirstThatAccepts(const std::vector<std::string>& addresses,
                        milliseconds limit, std::string* found) {
  std::vector<Fd> sockets;
  for (const std::string& a : addresses) sockets.push_back(StartToConnect(a));
  const auto deadline = steady_clock::now() + limit;
  std::optional<steady_clock::time_point> answered;
  bool open = true;  // some attempt before the first that is connected
  while (open && steady_clock::now() < deadline) {
    open = false;
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (!IsConnected(&sockets[i])) {
        open |= sockets[i].valid();
        continue;
      }
      const auto now = steady_clock::now();
      if (!answered) answered = now;
      if (open && now - *answered < kPreference) break;
      *found = addresses[i];
      return Status();
    }
    poll(nullptr, 0, kLookMs);
  }
  return Status(Code::kUnavailable,
                "none of the coordinator's addresses accepts a connection (" +
                    absl::StrJoin(addresses, ", ") +
                    "): is a firewall in between?");
}

}  // namespace maypole::launcher
