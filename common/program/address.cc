#include "common/program/address.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {
namespace {

// Shared with the thread that calls the resolver. The call cannot be cancelled,
// so this may outlive the caller.
struct Question {
  std::mutex mutex;
  std::condition_variable changed;
  bool answered = false;
  Addresses found;
};

// Null if there is no address by the deadline.
Addresses ResolveUntil(const Address& address,
                       std::chrono::steady_clock::time_point deadline) {
  const std::string host = WithoutBrackets(address.host);
  Addresses numeric = Resolve(host, address.port, AI_NUMERICHOST);
  if (numeric != nullptr) return numeric;
  const auto question = std::make_shared<Question>();
  std::thread([question, host, port = address.port] {
    Addresses found = Resolve(host, port, 0);
    std::lock_guard lock(question->mutex);
    question->found = std::move(found);
    question->answered = true;
    question->changed.notify_all();
  }).detach();
  std::unique_lock lock(question->mutex);
  question->changed.wait_until(lock, deadline,
                               [&] { return question->answered; });
  return std::move(question->found);
}

Fd ConnectOne(const addrinfo& to, int timeout_ms) {
  Fd fd(
      ::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return Fd();
  }
  pollfd wait{fd.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  if (::poll(&wait, 1, timeout_ms) != 1 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 ||
      error != 0) {
    return Fd();
  }
  return fd;
}

}  // namespace

std::string Address::Text() const { return absl::StrCat(host, ":", port); }

absl::StatusOr<Address> ParseAddress(const std::string& flag,
                                     const std::string& text) {
  HostPort at;
  if (SplitHostPort(text, &at)) {
    return Address{text.substr(0, text.rfind(':')), at.port};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      flag, "=", text,
      " is not HOST:PORT, as 127.0.0.1:4001 or [::1]:4001 (port 0: any)"));
}

absl::StatusOr<std::vector<Address>> ParseAddresses(const std::string& flag,
                                                    const std::string& text) {
  std::vector<Address> all;
  std::set<std::string> seen;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    absl::StatusOr<Address> address = ParseAddress(flag, std::string(one));
    if (!address.ok()) return address.status();
    if (!seen.insert(address->Text()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, "=", text, " has ", one, " twice"));
    }
    all.push_back(*std::move(address));
  }
  if (all.size() > kMaxAddresses) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", text, " has ", all.size(),
                     " addresses; at most ", kMaxAddresses, " are allowed"));
  }
  return all;
}

bool IsLoopback(const Address& address) { return IsLoopbackHost(address.host); }

int MillisLeft(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

Fd ConnectTcp(const Address& address,
              std::chrono::steady_clock::time_point deadline) {
  const Addresses resolved = ResolveUntil(address, deadline);
  int rest = 0;
  for (const addrinfo* a = resolved.get(); a != nullptr; a = a->ai_next) ++rest;
  for (const addrinfo* a = resolved.get(); a != nullptr; a = a->ai_next) {
    Fd fd = ConnectOne(*a, MillisLeft(deadline) / rest--);
    if (fd.valid()) return fd;
  }
  return Fd();
}

}  // namespace maypole
