#include "worker/network/route.h"

#include <ifaddrs.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/system/fd.h"

namespace maypole::worker {
namespace {

// `host` has no brackets.
absl::StatusOr<std::string> Towards(const std::string& host, int port) {
  int error = 0;
  const Addresses found = Resolve(host, port, 0, &error);
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    const Fd fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    socklen_t size = sizeof(own);
    // Connecting a datagram socket only asks the routing table.
    if (fd.valid() && connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd.get(), address, &size) == 0) {
      return NumericHost(address);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("no route to '", host, "': ", std::strerror(errno)));
}

struct FreeInterfaces {
  void operator()(ifaddrs* all) const { freeifaddrs(all); }
};
using Interfaces = std::unique_ptr<ifaddrs, FreeInterfaces>;

Interfaces AllInterfaces() {
  ifaddrs* all = nullptr;
  return Interfaces(getifaddrs(&all) == 0 ? all : nullptr);
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const std::string& peer) {
  HostPort at;
  if (!SplitHostPort(peer, &at)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", peer, "' must have the form HOST:PORT"));
  }
  return Towards(at.host, at.port);
}

absl::StatusOr<std::string> OwnAddress(const std::string& coordinator,
                                       const std::vector<std::string>& others) {
  const absl::StatusOr<std::string> own = LocalAddressTowards(coordinator);
  if (own.ok() && !IsLoopbackHost(*own)) return own;
  for (const std::string& other : others) {
    if (other.empty() || IsLoopbackHost(other)) continue;
    const absl::StatusOr<std::string> towards = Towards(other, 0);
    if (towards.ok() && !IsLoopbackHost(*towards)) return towards;
  }
  return own;  // all nodes are on this machine
}

std::string AddressOfInterface(const std::string& name) {
  const Interfaces all = AllInterfaces();
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == family &&
          name == i->ifa_name) {
        return NumericHost(i->ifa_addr);
      }
    }
  }
  return "";
}

std::string InterfaceOf(const std::string& address) {
  const Addresses wanted = Resolve(address, 0, AI_NUMERICHOST);
  const Interfaces all = AllInterfaces();
  for (const ifaddrs* i = all.get(); wanted != nullptr && i != nullptr;
       i = i->ifa_next) {
    if (NumericHost(i->ifa_addr) == NumericHost(wanted->ai_addr)) {
      return i->ifa_name;
    }
  }
  return "";
}

absl::StatusOr<std::string> FindUntil(const std::function<bool()>& stopped,
                                      FindAddress find) {
  std::promise<absl::StatusOr<std::string>> promise;
  auto found = promise.get_future();
  std::thread([find = std::move(find), promise = std::move(promise)]() mutable {
    promise.set_value(find());
  }).detach();
  const auto deadline = std::chrono::steady_clock::now() + kLookUpLimit;
  constexpr std::chrono::milliseconds kTurn(20);
  while (found.wait_for(kTurn) != std::future_status::ready) {
    if (stopped()) return absl::CancelledError("the look-up was stopped");
    if (std::chrono::steady_clock::now() < deadline) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "the name service has not answered for ", kLookUpLimit.count(), " s"));
  }
  return found.get();
}

}  // namespace maypole::worker
